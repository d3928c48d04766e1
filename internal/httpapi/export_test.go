package httpapi

// DecodeBuild is decodeBuild, for fuzzing.
var DecodeBuild = decodeBuild

// Terminals is how many terminals a has taken in.
func (a *API) Terminals() int {
	a.terms.mu.Lock()
	defer a.terms.mu.Unlock()
	return len(a.terms.all)
}
