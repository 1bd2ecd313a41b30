//go:build tools

// Package kueue pins Kueue, which queues jobs beside a control plane, and the definition of its ProvisioningRequests.
package kueue

import (
	_ "k8s.io/autoscaler/cluster-autoscaler/apis/provisioningrequest/autoscaling.x-k8s.io/v1"
	_ "sigs.k8s.io/kueue/cmd/kueue"
)
