//go:build tools

// Package metricsserver pins what `kubectl top` of the test clusters asks.
package metricsserver

import _ "sigs.k8s.io/metrics-server/cmd/metrics-server"
