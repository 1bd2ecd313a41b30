//go:build tools

// Package nvidia pins the programs that give the nodes of test clusters their GPUs and labels, and the header of the library
// for which nvml/ stands in.
package nvidia

import (
	_ "github.com/NVIDIA/go-nvml/pkg/nvml"
	_ "github.com/NVIDIA/k8s-device-plugin/cmd/gpu-feature-discovery"
	_ "github.com/NVIDIA/k8s-device-plugin/cmd/mps-control-daemon"
	_ "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin"
)
