//go:build tools

// Package kwok pins the node simulator that the test clusters run.
package kwok

import _ "sigs.k8s.io/kwok/cmd/kwok"
