//go:build tools

// Package wireguard pins the WireGuard program that benchmarks compare with.
package wireguard

import _ "golang.zx2c4.com/wireguard"
