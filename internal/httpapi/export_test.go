package httpapi

// DecodeBuild is decodeBuild, for fuzzing.
var DecodeBuild = decodeBuild
