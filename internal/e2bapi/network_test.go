package e2bapi

import (
	"slices"
	"testing"

	"hutch.dev/hutch"
)

// reach is what a policy lets a sandbox reach, in a word for each rule; "-" = nothing was asked.
func reach(p *hutch.NetworkPolicy) []string {
	if p == nil {
		return []string{"-"}
	}
	out := []string{string(p.Mode)}
	for _, r := range p.Rules {
		out = append(out, string(r.Action)+" "+r.Domain+r.CIDR)
	}
	return out
}

func TestNetworkOfACreate(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want []string
	}{
		"nothing":                    {`{"templateID":"base"}`, []string{"-"}},
		"what older clients say":     {`{"templateID":"base","allow_internet_access":true,"network":{"denyOut":[]}}`, []string{"-"}},
		"no internet":                {`{"templateID":"base","allow_internet_access":false}`, []string{"off"}},
		"everything denied":          {`{"templateID":"base","network":{"denyOut":["0.0.0.0/0","10.0.0.1"]}}`, []string{"off"}},
		"some allowed":               {`{"templateID":"base","network":{"allowOut":["example.com","*.example.org","203.0.113.7","203.0.113.0/24"],"denyOut":["0.0.0.0/0"]}}`, []string{"custom", "allow example.com", "allow *.example.org", "allow 203.0.113.7", "allow 203.0.113.0/24"}},
		"allowed beats denied":       {`{"templateID":"base","network":{"allowOut":["203.0.113.7"],"denyOut":["203.0.113.7","0.0.0.0/0"]}}`, []string{"custom", "allow 203.0.113.7"}},
		"no internet but for a host": {`{"templateID":"base","allow_internet_access":false,"network":{"allowOut":["example.com"]}}`, []string{"custom", "allow example.com"}},
	} {
		b := newBench(t)
		b.create(c.body)
		if got := reach(b.sandboxes[b.order[len(b.order)-1]].Network.Asked.Agent); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestUpdateNetwork(t *testing.T) {
	b := newBench(t)
	path := "/sandboxes/" + string(b.sb) + "/network"
	var info struct {
		Internet bool    `json:"allowInternetAccess"`
		Network  network `json:"network"`
	}
	show := func() {
		info.Network, info.Internet = network{}, false
		b.control("GET", "/sandboxes/"+string(b.sb), "").json(t, &info)
	}
	if r := b.control("PUT", path, `{"allowOut":["example.com"],"denyOut":["0.0.0.0/0"]}`); r.status != 204 {
		t.Fatalf("update: %d %s", r.status, r.body)
	}
	if show(); !info.Internet || !slices.Equal(info.Network.AllowOut, []string{"example.com"}) || !slices.Equal(info.Network.DenyOut, []string{"0.0.0.0/0"}) {
		t.Errorf("info says %+v", info)
	}
	if r := b.control("PUT", path, `{}`); r.status != 204 {
		t.Fatalf("clear: %d %s", r.status, r.body)
	}
	if show(); info.Internet || len(info.Network.AllowOut)+len(info.Network.DenyOut) != 0 {
		t.Errorf("info of one that was cleared says %+v", info)
	}
	for body, status := range map[string]int{
		`{"denyOut":["example.com"]}`:     400,
		`{"allowOut":["example.com"]}`:    400,
		`{"allowOut":["203.0.113.7"]}`:    501,
		`{"rules":{"a":[{}]}}`:            501,
		`{"allowPublicTraffic":false}`:    501,
		`{"egressProxy":{"address":"a"}}`: 501,
	} {
		if r := b.control("PUT", path, body); r.status != status {
			t.Errorf("%s: %d %s, want %d", body, r.status, r.body, status)
		}
	}
	if r := b.control("PUT", "/sandboxes/i00000000000000000000/network", `{}`); r.status != 404 {
		t.Errorf("a sandbox that is not there: %d", r.status)
	}
}
