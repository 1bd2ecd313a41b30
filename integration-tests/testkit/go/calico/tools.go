//go:build tools

// Package calico pins the programs of Calico that enforce NetworkPolicies on nodes of the test clusters.
package calico

import (
	_ "github.com/projectcalico/calico/cni-plugin/cmd/calico"
	_ "github.com/projectcalico/calico/felix/cmd/calico-felix"
)
