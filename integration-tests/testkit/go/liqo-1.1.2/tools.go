//go:build tools

// Package liqo pins the programs of an earlier Liqo that the test clusters run when they are told to.
package liqo

import (
	_ "github.com/liqotech/liqo/cmd/crd-replicator"
	_ "github.com/liqotech/liqo/cmd/ipam"
	_ "github.com/liqotech/liqo/cmd/liqo-controller-manager"
	_ "github.com/liqotech/liqo/cmd/virtual-kubelet"
	_ "github.com/liqotech/liqo/cmd/webhook"
)
