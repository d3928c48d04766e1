package guestapi

import "hutch.dev/hutch"

// The calls about ports, the disk and shell sessions. {port} is 1 to 65535.
//
//	POST   /v1/ports/{port}/connect   frames → frames, once connected; 502 port_closed if nothing listens
//	GET    /v1/ports                  → Listeners
//	GET    /v1/disk                   → hutch.DiskUsage
//	GET    /v1/shells                 → Shells
//	DELETE /v1/shells/{name}          → {}
//
// The bodies of connect are the two directions of a connection to a server inside, on
// 127.0.0.1 or else on [::1], in the frames of package duplex: both bodies are open until
// the connection is over, and each direction has an end of its own. The answer's status
// comes once the server has accepted or has not. A body that is cut cuts the connection.
const (
	PathPorts  = "/v1/ports"
	PathDisk   = "/v1/disk"
	PathShells = "/v1/shells"
)

// MaxPortConns is how many connections to ports one guest has at once.
const MaxPortConns = 256

// Listeners is every TCP port that something listens on, lowest first.
type Listeners struct {
	Listeners []hutch.Listener `json:"listeners"`
}

// Shells is every shell session, in the order of the names.
type Shells struct {
	Shells []hutch.Shell `json:"shells"`
}
