package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	createContainer = "/runtime.v1.RuntimeService/CreateContainer"
	largestMessage  = 16 << 20
)

// The parts of a CDI spec that this driver writes.
type cdiSpec struct {
	Version string      `json:"cdiVersion"`
	Kind    string      `json:"kind"`
	Devices []cdiDevice `json:"devices"`
}

type cdiDevice struct {
	Name           string   `json:"name"`
	ContainerEdits cdiEdits `json:"containerEdits"`
}

type cdiEdits struct {
	Env         []string        `json:"env,omitempty"`
	DeviceNodes []cdiDeviceNode `json:"deviceNodes,omitempty"`
}

type cdiDeviceNode struct {
	Path        string `json:"path"`
	HostPath    string `json:"hostPath"`
	Permissions string `json:"permissions"`
}

// frame is a message that is passed on as it is.
type frame struct{ bytes []byte }

type rawCodec struct{}

func (rawCodec) Marshal(message any) ([]byte, error) { return message.(*frame).bytes, nil }

func (rawCodec) Unmarshal(bytes []byte, message any) error {
	message.(*frame).bytes = append([]byte(nil), bytes...)
	return nil
}

func (rawCodec) Name() string { return "proto" }

// serveCRI passes every call of the container runtime interface on to containerd.
func serveCRI(socket, containerd, cdi string) error {
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient("unix://"+containerd, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.MaxCallRecvMsgSize(largestMessage)))
	if err != nil {
		return err
	}
	pass := func(_ any, kubelet grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(kubelet)
		both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
		runtime, err := connection.NewStream(kubelet.Context(), both, method)
		if err != nil {
			return err
		}
		go func() {
			for {
				var message frame
				if err := kubelet.RecvMsg(&message); err != nil {
					break
				}
				if method == createContainer {
					message.bytes = withDevices(message.bytes, cdi)
				}
				if err := runtime.SendMsg(&message); err != nil {
					break
				}
			}
			runtime.CloseSend()
		}()
		for {
			var message frame
			if err := runtime.RecvMsg(&message); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			if err := kubelet.SendMsg(&message); err != nil {
				return err
			}
		}
	}
	server := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(pass), grpc.MaxRecvMsgSize(largestMessage))
	return server.Serve(listener)
}

// withDevices replaces the CDI devices of a request by what their specs say.
func withDevices(request []byte, cdi string) []byte {
	var create runtimeapi.CreateContainerRequest
	if err := proto.Unmarshal(request, &create); err != nil || create.Config == nil || len(create.Config.CDIDevices) == 0 {
		return request
	}
	for _, wanted := range create.Config.CDIDevices {
		edits, err := editsOf(wanted.Name, cdi)
		if err != nil {
			log.Print(err)
			return request
		}
		for _, node := range edits.DeviceNodes {
			create.Config.Devices = append(create.Config.Devices,
				&runtimeapi.Device{ContainerPath: node.Path, HostPath: node.HostPath, Permissions: node.Permissions})
		}
		for _, variable := range edits.Env {
			key, value, _ := strings.Cut(variable, "=")
			create.Config.Envs = append(create.Config.Envs, &runtimeapi.KeyValue{Key: key, Value: value})
		}
	}
	create.Config.CDIDevices = nil
	edited, err := proto.Marshal(&create)
	if err != nil {
		log.Print(err)
		return request
	}
	return edited
}

func editsOf(device, cdi string) (cdiEdits, error) {
	files, _ := filepath.Glob(filepath.Join(cdi, "*.json"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		var spec cdiSpec
		if err != nil || json.Unmarshal(text, &spec) != nil {
			continue
		}
		for _, known := range spec.Devices {
			if spec.Kind+"="+known.Name == device {
				return known.ContainerEdits, nil
			}
		}
	}
	return cdiEdits{}, fmt.Errorf("no CDI spec has %q", device)
}
