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
	b, err := readSmall(path)
	if err != nil {
		return nil, err
	}
	card := &hutch.RateCard{}
	if err := decodeStrictly(b, card); err != nil {
		return nil, fmt.Errorf("it is not a rate card in JSON: %w", err)
	}
	if err := card.Check(); err != nil {
		return nil, err
	}
	return card, nil
}

// maxSettingBytes is far above what anybody writes by hand.
const maxSettingBytes = 256 << 10

// readSmall reads a file that an operator wrote.
func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxSettingBytes+1))
	if err == nil && len(b) > maxSettingBytes {
		err = fmt.Errorf("it is too large: %d bytes are the most", maxSettingBytes)
	}
	return b, err
}

// decodeStrictly takes one JSON value, in which every name is known, and nothing after it.
func decodeStrictly(b []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows it: one file has one object")
	}
	return nil
}
