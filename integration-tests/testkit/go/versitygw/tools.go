//go:build tools

// Package versitygw pins the S3 server that keeps checkpoints in the test clusters.
package versitygw

import _ "github.com/versity/versitygw/cmd/versitygw"
