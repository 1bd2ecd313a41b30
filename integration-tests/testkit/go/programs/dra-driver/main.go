// dra-driver stands in for NVIDIA's DRA driver, which needs GPUs: it speaks the
// kubelet's plugin API for dynamic resource allocation and publishes -devices
// devices with the attributes of NVIDIA's driver (0.4.0, whole GPUs). Behind
// /dev/nvidia<index> of a container is /dev/null.
//
// A container gets its devices by CDI, as with NVIDIA's driver. containerd has
// that from 1.7 on. So that an older one does, too, the kubelet speaks to the
// socket -cri, which applies the CDI devices to CreateContainer and passes
// everything on to containerd: see cri.go.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const nodeTries = 1200

type driver struct {
	name string
	cdi  string
}

func main() {
	name := flag.String("driver", "gpu.nvidia.com", "driver name")
	count := flag.Int("devices", 4, "number of devices")
	node := flag.String("node", "", "node name")
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of the node")
	cdi := flag.String("cdi", "/run/cdi", "folder of CDI specs")
	cri := flag.String("cri", "/run/dra-driver/cri.sock", "socket for the kubelet")
	containerd := flag.String("containerd", "/run/containerd/containerd.sock", "socket of containerd")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	for _, folder := range []string{*cdi, filepath.Dir(*cri), kubeletplugin.KubeletRegistryDir,
		filepath.Join(kubeletplugin.KubeletPluginsDir, *name)} {
		if err := os.MkdirAll(folder, 0o750); err != nil {
			log.Fatal(err)
		}
	}
	go func() { log.Fatal(serveCRI(*cri, *containerd, *cdi)) }()

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	awaitNode(ctx, client, *node)
	helper, err := kubeletplugin.Start(ctx, driver{name: *name, cdi: *cdi}, kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(*node), kubeletplugin.DriverName(*name))
	if err != nil {
		log.Fatal(err)
	}
	slice := resourceslice.Slice{Devices: devices(*count)}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{slice}}
	published := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{*node: pool}}
	if err := helper.PublishResources(ctx, published); err != nil {
		log.Fatal(err)
	}
	log.Printf("%s: published %d devices", *name, *count)
	<-ctx.Done()
	helper.Stop()
}

// awaitNode waits until the kubelet has registered its node, which owns the slices.
func awaitNode(ctx context.Context, client kubernetes.Interface, node string) {
	for range nodeTries {
		if _, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	log.Fatalf("there is no node %q", node)
}

func devices(count int) []resourceapi.Device {
	text := func(value string) resourceapi.DeviceAttribute {
		return resourceapi.DeviceAttribute{StringValue: &value}
	}
	version := func(value string) resourceapi.DeviceAttribute {
		return resourceapi.DeviceAttribute{VersionValue: &value}
	}
	var devices []resourceapi.Device
	for i := range count {
		devices = append(devices, resourceapi.Device{
			Name: fmt.Sprintf("gpu-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type":                            text("gpu"),
				"uuid":                            text(fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i)),
				"productName":                     text("NVIDIA H100 80GB HBM3"),
				"brand":                           text("Nvidia"),
				"architecture":                    text("Hopper"),
				"cudaComputeCapability":           version("9.0.0"),
				"driverVersion":                   version("550.163.1"),
				"cudaDriverVersion":               version("12.4.0"),
				"resource.kubernetes.io/pciBusID": text(fmt.Sprintf("0000:%02x:00.0", 16+i)),
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("81559Mi")}},
		})
	}
	return devices
}

func (d driver) spec(claim types.UID) string {
	return filepath.Join(d.cdi, "claim-"+string(claim)+".json")
}

func (d driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	prepared := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		prepared[claim.UID] = d.prepare(claim)
		log.Printf("prepared %s/%s: %+v", claim.Namespace, claim.Name, prepared[claim.UID])
	}
	return prepared, nil
}

func (d driver) prepare(claim *resourceapi.ResourceClaim) (result kubeletplugin.PrepareResult) {
	spec := cdiSpec{Version: "0.6.0", Kind: d.name + "/claim"}
	for _, given := range claim.Status.Allocation.Devices.Results {
		if given.Driver != d.name {
			continue
		}
		index, err := strconv.Atoi(strings.TrimPrefix(given.Device, "gpu-"))
		if err != nil {
			result.Err = fmt.Errorf("no device %q here", given.Device)
			return result
		}
		name := string(claim.UID) + "-" + given.Device
		edits := cdiEdits{
			Env:         []string{fmt.Sprintf("NVIDIA_GPU_%d=%s", index, given.Device)},
			DeviceNodes: []cdiDeviceNode{{Path: fmt.Sprintf("/dev/nvidia%d", index), HostPath: "/dev/null", Permissions: "rw"}},
		}
		spec.Devices = append(spec.Devices, cdiDevice{Name: name, ContainerEdits: edits})
		result.Devices = append(result.Devices, kubeletplugin.Device{
			Requests: []string{given.Request}, PoolName: given.Pool, DeviceName: given.Device,
			CDIDeviceIDs: []string{spec.Kind + "=" + name},
		})
	}
	text, err := json.Marshal(spec)
	if err == nil {
		err = os.WriteFile(d.spec(claim.UID), text, 0o644)
	}
	result.Err = err
	return result
}

func (d driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	unprepared := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(d.spec(claim.UID))
		if os.IsNotExist(err) {
			err = nil
		}
		unprepared[claim.UID] = err
		log.Printf("unprepared %s: %v", claim.String(), err)
	}
	return unprepared, nil
}

func (driver) HandleError(_ context.Context, err error, message string) {
	log.Printf("%s: %v", message, err)
}
