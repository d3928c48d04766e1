package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"hutch.dev/hutch"
)

// maxCardBytes is far above any rate card.
const maxCardBytes = 64 << 10

// readRates reads the operator's rate card, if one is named.
func (c *serveConfig) readRates() error {
	if c.control.UsageFor < time.Second {
		return fmt.Errorf("--usage-retention must be at least 1s, not %s", c.control.UsageFor)
	}
	if c.rateCard == "" {
		return nil
	}
	card, err := readRateCard(c.rateCard)
	if err != nil {
		return fmt.Errorf("--rate-card %s: %w", c.rateCard, err)
	}
	c.control.RateCard = card
	return nil
}

// readRateCard reads a card as docs/usage.md describes it. Rates that are left out are zero;
// a name that is not known, or anything after the object, is refused.
func readRateCard(path string) (*hutch.RateCard, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxCardBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxCardBytes {
		return nil, errors.New("it is too large for a rate card")
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	card := &hutch.RateCard{}
	if err := dec.Decode(card); err != nil {
		return nil, fmt.Errorf("it is not a rate card in JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the rate card's object: one file has one card")
	}
	if err := card.Check(); err != nil {
		return nil, err
	}
	return card, nil
}
