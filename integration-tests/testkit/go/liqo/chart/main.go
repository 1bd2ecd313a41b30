// render-chart renders a Helm chart without a cluster, as `helm template` does, and prints its objects as one JSON
// list of the kind that `kubectl apply` takes.
//
//	render-chart CHART NAMESPACE VALUES...
//
// CHART is a folder, each VALUES a file; later files win. The release is named as the chart. Hooks and custom resource
// definitions are left out: the first belong to Helm's own life cycle, the second are applied from their files.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "render-chart:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: render-chart CHART NAMESPACE VALUES...")
	}
	chart, err := loader.LoadDir(args[0])
	if err != nil {
		return fmt.Errorf("cannot load the chart in %s: %w", args[0], err)
	}
	values := map[string]any{}
	for _, file := range args[2:] {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		given := map[string]any{}
		if err := yaml.Unmarshal(text, &given); err != nil {
			return fmt.Errorf("%s is not a values file: %w", file, err)
		}
		values = chartutil.MergeTables(given, values)
	}
	if err := chartutil.ProcessDependenciesWithMerge(chart, values); err != nil {
		return fmt.Errorf("cannot resolve the chart's parts: %w", err)
	}
	release := chartutil.ReleaseOptions{Name: chart.Name(), Namespace: args[1], Revision: 1, IsInstall: true}
	context, err := chartutil.ToRenderValues(chart, values, release, chartutil.DefaultCapabilities)
	if err != nil {
		return fmt.Errorf("the values do not fit the chart: %w", err)
	}
	rendered, err := engine.Render(chart, context)
	if err != nil {
		return fmt.Errorf("cannot render: %w", err)
	}
	objects, err := collect(rendered)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
}

// collect gives the objects of all rendered files, in a fixed order.
func collect(rendered map[string]string) ([]map[string]any, error) {
	var files []string
	for name := range rendered {
		if extension := path.Ext(name); extension == ".yaml" || extension == ".yml" {
			files = append(files, name)
		}
	}
	sort.Strings(files)
	objects := []map[string]any{}
	for _, name := range files {
		documents := releaseutil.SplitManifests(rendered[name])
		keys := make([]string, 0, len(documents))
		for key := range documents {
			keys = append(keys, key)
		}
		sort.Sort(releaseutil.BySplitManifestsOrder(keys))
		for _, key := range keys {
			object := map[string]any{}
			if err := yaml.Unmarshal([]byte(documents[key]), &object); err != nil {
				return nil, fmt.Errorf("%s renders to what is not YAML: %w", name, err)
			}
			if len(object) == 0 || isHook(object) || strings.EqualFold(fmt.Sprint(object["kind"]), "CustomResourceDefinition") {
				continue
			}
			objects = append(objects, object)
		}
	}
	return objects, nil
}

func isHook(object map[string]any) bool {
	metadata, _ := object["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	_, hook := annotations["helm.sh/hook"]
	return hook
}
