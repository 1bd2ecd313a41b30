// Command cainjector runs the controllers of cert-manager's cainjector for webhooks. Its own command is in a module that
// cannot be got by a version.
package main

import (
	"log"

	"github.com/cert-manager/cert-manager/pkg/api"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	"github.com/cert-manager/cert-manager/pkg/util"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	ctrl.SetLogger(klog.Background())
	if err := scheme.AddToScheme(api.Scheme); err != nil {
		log.Fatal(err)
	}
	config := util.RestConfigWithUserAgent(ctrl.GetConfigOrDie(), "cainjector")
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  api.Scheme,
		Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		log.Fatalf("no manager: %v", err)
	}
	ctx := ctrl.SetupSignalHandler()
	options := cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor:        map[string]bool{cainjector.MutatingWebhookConfigurationName: true},
	}
	if err := cainjector.RegisterAllInjectors(ctx, manager, options); err != nil {
		log.Fatalf("no injectors: %v", err)
	}
	if err := manager.Start(ctx); err != nil {
		log.Fatal(err)
	}
}
