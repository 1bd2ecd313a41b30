//go:build tools

// Package etcd pins the etcd server that the test clusters run.
package etcd

import _ "go.etcd.io/etcd/server/v3"
