// gpu-plugin is a kubelet device plugin (v1beta1) for devices that do not exist.
//
// It advertises -devices devices named GPU-<node>-<index> as nvidia.com/gpu. A
// container that is given some of them finds their names in
// NVIDIA_VISIBLE_DEVICES and one device node /dev/nvidia<index> each, as with
// NVIDIA's plugin; behind the node is /dev/null, so the kubelet's and runc's
// device paths run in earnest and nothing can be harmed.
//
// A device is unhealthy while the file <state>/<device>/sick exists.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	socketName     = "nvidia-gpu.sock"
	healthInterval = 500 * time.Millisecond
	socketInterval = 200 * time.Millisecond
	registerTries  = 600
)

type plugin struct {
	deviceplugin.UnimplementedDevicePluginServer
	resource string
	state    string
	devices  []string
}

func main() {
	resource := flag.String("resource", "nvidia.com/gpu", "resource name to advertise")
	count := flag.Int("devices", 2, "number of devices")
	node := flag.String("node", "node", "prefix of the device names")
	folder := flag.String("folder", deviceplugin.DevicePluginPath, "kubelet's device plugin folder")
	state := flag.String("state", "/run/gpu-plugin", "folder with one folder for each device")
	flag.Parse()

	p := &plugin{resource: *resource, state: *state}
	for i := range *count {
		name := fmt.Sprintf("GPU-%s-%d", *node, i)
		if err := os.MkdirAll(filepath.Join(*state, name), 0o755); err != nil {
			log.Fatal(err)
		}
		p.devices = append(p.devices, name)
	}
	// The plugin may well be up before the kubelet has made its folder.
	if err := os.MkdirAll(*folder, 0o750); err != nil {
		log.Fatal(err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	for p.serveUntilForgotten(*folder, stop) {
	}
}

// serveUntilForgotten serves and registers until the kubelet empties its folder,
// which it does whenever it starts. Says whether to begin again.
func (p *plugin) serveUntilForgotten(folder string, stop <-chan os.Signal) bool {
	socket := filepath.Join(folder, socketName)
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	deviceplugin.RegisterDevicePluginServer(server, p)
	go func() {
		if err := server.Serve(listener); err != nil {
			log.Printf("serve: %v", err)
		}
	}()
	defer server.Stop()
	if err := p.register(folder); err != nil {
		log.Printf("register: %v", err)
	} else {
		log.Printf("registered %s with %d devices", p.resource, len(p.devices))
	}
	for {
		select {
		case <-stop:
			return false
		case <-time.After(socketInterval):
			if _, err := os.Stat(socket); err != nil {
				log.Print("the socket is gone: the kubelet has restarted, registering again")
				return true
			}
		}
	}
}

func (p *plugin) register(folder string) error {
	var last error
	for range registerTries {
		// A starting kubelet empties its folder. Registering a socket that is gone would be believed.
		if _, err := os.Stat(filepath.Join(folder, socketName)); err != nil {
			return err
		}
		if last = p.registerOnce(folder); last == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return last
}

func (p *plugin) registerOnce(folder string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	connection, err := grpc.NewClient("unix://"+filepath.Join(folder, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = deviceplugin.NewRegistrationClient(connection).Register(ctx, &deviceplugin.RegisterRequest{
		Version:      deviceplugin.Version,
		Endpoint:     socketName,
		ResourceName: p.resource,
		Options:      &deviceplugin.DevicePluginOptions{},
	})
	return err
}

func (p *plugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

// ListAndWatch sends the devices once, and again whenever the health of one changes.
func (p *plugin) ListAndWatch(_ *deviceplugin.Empty, stream deviceplugin.DevicePlugin_ListAndWatchServer) error {
	sent := ""
	for {
		var devices []*deviceplugin.Device
		healths := "healths"
		for _, name := range p.devices {
			health := deviceplugin.Healthy
			if _, err := os.Stat(filepath.Join(p.state, name, "sick")); err == nil {
				health = deviceplugin.Unhealthy
			}
			devices = append(devices, &deviceplugin.Device{ID: name, Health: health})
			healths += " " + health
		}
		if healths != sent {
			if err := stream.Send(&deviceplugin.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
			sent = healths
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(healthInterval):
		}
	}
}

func (p *plugin) Allocate(_ context.Context, request *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	response := &deviceplugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		names := strings.Join(container.DevicesIds, ",")
		given := &deviceplugin.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": names}}
		for _, name := range container.DevicesIds {
			index := slices.Index(p.devices, name)
			if index < 0 {
				return nil, fmt.Errorf("no device %q here", name)
			}
			given.Devices = append(given.Devices, &deviceplugin.DeviceSpec{
				ContainerPath: fmt.Sprintf("/dev/nvidia%d", index),
				HostPath:      "/dev/null",
				Permissions:   "rw",
			})
		}
		log.Printf("allocated %s", names)
		response.ContainerResponses = append(response.ContainerResponses, given)
	}
	return response, nil
}

func (p *plugin) PreStartContainer(context.Context, *deviceplugin.PreStartContainerRequest) (*deviceplugin.PreStartContainerResponse, error) {
	return &deviceplugin.PreStartContainerResponse{}, nil
}
