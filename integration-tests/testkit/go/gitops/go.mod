// CustomResourceDefinitions of Flux and Argo CD. Nothing is built of them.
module comity.dev/testkit/gitops

go 1.26

require (
	github.com/argoproj/argo-cd/v3 v3.4.13
	github.com/fluxcd/kustomize-controller v1.9.6
	github.com/fluxcd/source-controller v1.9.6
)
