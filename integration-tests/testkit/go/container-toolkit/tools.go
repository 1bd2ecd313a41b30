//go:build tools

// Package containertoolkit pins NVIDIA's container runtime.
package containertoolkit

import _ "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-container-runtime"
