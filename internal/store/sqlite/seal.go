package sqlite

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/atomicfile"
	"hutch.dev/hutch/internal/x/failpoint"
)

const (
	// keySuffix is added to the database's path to name the file with its key.
	keySuffix = ".key"
	keySize   = 32
	// sealMark begins a sealed value; its number is that of the way it was sealed.
	sealMark = "sealed:1:"
)

// sealer encrypts the values of tenants that are secrets before they go to the disk: those
// of sandboxes' environments, and of metadata that is never read back.
type sealer struct {
	aead cipher.AEAD
	mac  []byte // key of what stands in the index for a secret value
}

func newSealer(key []byte) (*sealer, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	m := hmac.New(sha256.New, key)
	m.Write([]byte("index of secret metadata"))
	return &sealer{aead: aead, mac: m.Sum(nil)}, nil
}

// record is sb as it is stored.
func (s *sealer) record(sb hutch.Sandbox) hutch.Sandbox {
	sb.Env = s.seal(sb.ID, sb.Env, func(string) bool { return true })
	sb.Metadata = s.seal(sb.ID, sb.Metadata, hutch.SecretMetadata)
	return sb
}

// open makes a stored record what it was.
func (s *sealer) open(sb *hutch.Sandbox) error {
	for _, m := range []map[string]string{sb.Env, sb.Metadata} {
		for k, v := range m {
			rest, sealed := strings.CutPrefix(v, sealMark)
			if !sealed {
				continue // from before values were sealed, or no secret
			}
			b, err := base64.RawStdEncoding.DecodeString(rest)
			if err == nil {
				b, err = s.aead.Open(nil, nil, b, bound(sb.ID, k))
			}
			if err != nil {
				return fmt.Errorf("%w: a value of sandbox %s does not open with the one that is there", ErrKey, sb.ID)
			}
			m[k] = string(b)
		}
	}
	return nil
}

// seal returns m with its secret values sealed. A value that was sealed cannot be told from
// one that only looks so, so whatever begins like one is sealed too.
func (s *sealer) seal(id hutch.SandboxID, m map[string]string, secret func(key string) bool) map[string]string {
	if len(m) == 0 {
		return m
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		if secret(k) || strings.HasPrefix(v, sealMark) {
			v = sealMark + base64.RawStdEncoding.EncodeToString(s.aead.Seal(nil, nil, []byte(v), bound(id, k)))
		}
		out[k] = v
	}
	return out
}

// bound ties a sealed value to its place, so that it opens in no other one.
func bound(id hutch.SandboxID, key string) []byte { return []byte(string(id) + "\x00" + key) }

// indexed is the value that a pair of metadata is looked for by: that of a secret tells
// equal from different and no more.
func (s *sealer) indexed(key, value string) string {
	if !hutch.SecretMetadata(key) {
		return value
	}
	m := hmac.New(sha256.New, s.mac)
	m.Write([]byte(key + "\x00" + value))
	return hex.EncodeToString(m.Sum(nil))
}

// loadKey reads the key in file, and makes one if there is none and orphans, which says
// whether there are records sealed with one, finds nothing.
func loadKey(file string, orphans func() (bool, error)) ([]byte, error) {
	key, err := os.ReadFile(file)
	if err == nil && len(key) != keySize {
		return nil, fmt.Errorf("%w: %s is not a key of %d bytes", ErrKey, file, keySize)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	sealed, err := orphans()
	if err != nil {
		return nil, err
	}
	if sealed {
		return nil, fmt.Errorf("%w: %s is missing", ErrKey, file)
	}
	return makeKey(file)
}

// makeKey puts a new key at file, whole or not at all. If another process was faster, that
// one's is it.
func makeKey(file string) ([]byte, error) {
	key := make([]byte, keySize)
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	// Named as those are that a start removes: a process that dies here leaves a copy of the key.
	tmp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".atomic-*") // mode 0600
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(key)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return nil, err
	}
	failpoint.At(failpoint.KeyWritten)
	if err := os.Link(tmp.Name(), file); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	failpoint.At(failpoint.KeyPlaced)
	if key, err = os.ReadFile(file); err != nil {
		return nil, err
	}
	return key, atomicfile.SyncDir(filepath.Dir(file))
}
