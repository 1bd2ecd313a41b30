//go:build tools

// Package certmanager pins cert-manager's controller, which makes certificates beside a control plane.
package certmanager

import (
	_ "github.com/cert-manager/cert-manager/cmd/controller"
)
