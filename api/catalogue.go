package api

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"

	"hutch.dev/hutch"
)

// OpenAPI is the contract of the native API, openapi/native.yaml.
//
//go:embed openapi/native.yaml
var OpenAPI []byte

//go:embed openapi/errors.json
var errorsJSON []byte

// ErrorCode is a row of the catalogue of error codes.
type ErrorCode struct {
	Code      hutch.Code `json:"code"`
	Status    int        `json:"status"`    // HTTP
	Retryable bool       `json:"retryable"` // the same call, unchanged, may succeed later
	Meaning   string     `json:"meaning"`
	Action    string     `json:"action"` // what the caller should do
}

var catalogue = sync.OnceValue(func() []ErrorCode {
	var rows []ErrorCode
	if err := json.Unmarshal(errorsJSON, &rows); err != nil {
		panic(fmt.Sprintf("embedded errors.json: %v", err)) // a test reads it before any user can
	}
	return rows
})

// ErrorCodes returns the catalogue, openapi/errors.json, in its order. It is shared:
// do not change it.
func ErrorCodes() []ErrorCode { return catalogue() }

var retryable = sync.OnceValue(func() map[hutch.Code]bool {
	m := make(map[hutch.Code]bool)
	for _, row := range catalogue() {
		m[row.Code] = row.Retryable
	}
	return m
})

// Retryable reports whether a call that failed with c may succeed later, unchanged.
func Retryable(c hutch.Code) bool { return retryable()[c] }
