package e2e

import (
	"testing"

	"hutch.dev/hutch/api"
)

// The package managers work inside as on any machine, on packages made there: what they
// would fetch waits for a network.
func TestPackageManagersInside(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(1024)})
	t.Run("apt", func(t *testing.T) {
		s.out(t, sb.ID, `set -e
mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin
printf 'Package: agent-tool\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody\nDepends: bash\nDescription: a tool\n' > /tmp/p/DEBIAN/control
printf '#!/bin/sh\nset -e\nid -u > /tmp/postinst\n' > /tmp/p/DEBIAN/postinst
printf '#!/bin/sh\necho a tool\n' > /tmp/p/usr/bin/agent-tool
chmod 755 /tmp/p/DEBIAN/postinst /tmp/p/usr/bin/agent-tool
dpkg-deb -b /tmp/p /tmp/agent-tool.deb
apt-get install -y /tmp/agent-tool.deb`, timeout(120))
		if out := s.out(t, sb.ID, `agent-tool; cat /tmp/postinst; dpkg -s agent-tool | grep ^Status`); out != "a tool\n0\nStatus: install ok installed" {
			t.Errorf("got %q", out)
		}
		s.out(t, sb.ID, `sudo -n apt-get remove -y agent-tool && ! command -v agent-tool`, timeout(120), asUser("user"))
	})
	t.Run("pip", func(t *testing.T) {
		const wheel = `python3 - <<'PY'
import zipfile
with zipfile.ZipFile("/tmp/agentlib-1.0-py3-none-any.whl", "w") as z:
    z.writestr("agentlib.py", "print('a library')\n")
    z.writestr("agentlib-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: agentlib\nVersion: 1.0\n")
    z.writestr("agentlib-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr("agentlib-1.0.dist-info/RECORD", "agentlib.py,,\nagentlib-1.0.dist-info/METADATA,,\nagentlib-1.0.dist-info/WHEEL,,\nagentlib-1.0.dist-info/RECORD,,\n")
PY`
		s.out(t, sb.ID, wheel)
		out := s.out(t, sb.ID, `set -e
python3 -m venv /workspace/venv
/workspace/venv/bin/pip install -q --no-index /tmp/agentlib-1.0-py3-none-any.whl
/workspace/venv/bin/python -c 'import agentlib'
pip install -q --no-index /tmp/agentlib-1.0-py3-none-any.whl 2>/dev/null
python3 -c 'import agentlib'`, timeout(120))
		if out != "a library\na library" {
			t.Errorf("got %q", out)
		}
	})
	t.Run("npm", func(t *testing.T) {
		out := s.out(t, sb.ID, `set -e
mkdir -p /tmp/lib /tmp/app && cd /tmp/lib && npm init -y >/dev/null && echo 'module.exports = "a module"' > index.js
cd /tmp/app && npm init -y >/dev/null && npm install --offline --no-audit --no-fund ../lib >/dev/null
node -e 'console.log(require("lib"))'`, timeout(120))
		if out != "a module" {
			t.Errorf("got %q", out)
		}
	})
}
