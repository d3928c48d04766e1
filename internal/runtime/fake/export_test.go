package fake

// ParseScript returns the words of the steps of a line.
func ParseScript(line string) (words [][]string) {
	for _, s := range parseScript(line) {
		words = append(words, s.Words)
	}
	return words
}
