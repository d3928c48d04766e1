package sniff

import (
	"bytes"
	"encoding/json"
	"strings"
)

// maxMining is how much of a connection is looked at to recognise a miner: its first message
// has some 100 to 500 bytes.
const maxMining = 4 << 10

// miningMethods begin the methods of the protocols between miners and pools: Stratum and its
// relatives for Ethereum and for CryptoNote, and the older getwork.
var miningMethods = []string{"mining.", "eth_submit", "eth_getwork", "eth_login", "keepalived", "getwork", "getblocktemplate", "submitblock", "xmrig."}

// LooksLikeMining reports whether b begins a miner's conversation with a pool. need > 0 is that
// it can't be said yet, and takes at least so many bytes.
func LooksLikeMining(b []byte) (mining bool, need int) {
	if len(b) == 0 {
		return false, 1
	}
	if b[0] != '{' && b[0] != '[' {
		return false, 0
	}
	// One value, which is a message or a batch of them. A decoder sees through escapes, spaces and
	// the order of keys.
	var raw json.RawMessage
	err := json.NewDecoder(bytes.NewReader(b)).Decode(&raw)
	switch {
	case err == nil:
		return miningMessage(raw), 0
	case len(b) >= maxMining:
		return miningText(b[:maxMining]), 0
	case strings.Contains(err.Error(), "EOF"):
		return false, len(b) + 1
	}
	return false, 0 // no JSON
}

func miningMessage(raw json.RawMessage) bool {
	var batch []json.RawMessage
	if raw[0] == '[' {
		if json.Unmarshal(raw, &batch) != nil || len(batch) == 0 {
			return false
		}
		raw = batch[0]
	}
	var m struct {
		Method string          `json:"method"`
		Params json.RawMessage `json:"params"`
	}
	if json.Unmarshal(raw, &m) != nil {
		return false
	}
	method := strings.ToLower(m.Method)
	for _, p := range miningMethods {
		if strings.HasPrefix(method, p) {
			return true
		}
	}
	return method == "login" && miningLogin(m.Params)
}

// miningLogin tells a miner's login from others: it names a wallet, a password and a program,
// or the algorithms that it can do.
func miningLogin(raw json.RawMessage) bool {
	var p map[string]json.RawMessage
	if json.Unmarshal(raw, &p) != nil {
		return false
	}
	has := func(key string) bool { _, ok := p[key]; return ok }
	return has("login") && (has("pass") && has("agent") || has("algo") || has("rigid"))
}

// miningText looks for the same in the beginning of a message that is too long to wait for.
func miningText(b []byte) bool {
	text := strings.ToLower(strings.Join(strings.Fields(string(b)), ""))
	for _, p := range miningMethods {
		if strings.Contains(text, `"method":"`+p) {
			return true
		}
	}
	return strings.Contains(text, `"method":"login"`) && strings.Contains(text, `"login":`) && strings.Contains(text, `"pass":`)
}
