//! The lease's API with the real kubectl.

use std::path::Path;
use std::process::{Command, Output};

use comity_agent_delivery::DonorDelivery as _;
use comity_testkit::{Binaries, Needs};
use comity_types::LeaseId;

use crate::host_under_test::{HostUnderTest, IMAGE, can_run};

struct Kubectl<'a> {
    program: &'a Path,
    kubeconfig: &'a Path,
}

impl Kubectl<'_> {
    fn output(&self, arguments: &[&str]) -> Output {
        // Its cache of discovery is by server, and ports return.
        let cache = self.kubeconfig.with_extension("cache");
        let mut command = Command::new(self.program);
        command.arg("--kubeconfig").arg(self.kubeconfig).arg("--cache-dir").arg(cache).args(arguments);
        command.output().unwrap()
    }

    fn with_input(&self, arguments: &[&str], input: &str) -> String {
        let file = self.kubeconfig.with_extension("input");
        std::fs::write(&file, input).unwrap();
        let mut command = Command::new(self.program);
        command.arg("--kubeconfig").arg(self.kubeconfig).args(arguments).stdin(std::fs::File::open(file).unwrap());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout) + &text(&output.stderr)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_runs_pods_on_a_host_without_kubernetes() {
    if !can_run("kubectl_runs_pods_on_a_host_without_kubernetes") {
        return;
    }
    let binaries = Binaries::ensure(Needs::ControlPlane).await.unwrap();
    let host = HostUnderTest::start().await;
    let lease = host.lend(1, &[0]).await;
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("lease.kubeconfig");
    std::fs::write(&kubeconfig, &lease.kubeconfig).unwrap();
    let program = binaries.program("kubectl");
    let kubectl = Kubectl { program: &program, kubeconfig: &kubeconfig };
    let image = format!("--image={IMAGE}");
    let command = ["--command", "--", "/bin/sh", "-c", "echo working; /bin/sleep 1; echo done"];
    let run = [&["run", "train", &image, "--restart=Never"][..], &command].concat();
    assert!(kubectl.run(&run).contains("pod/train created"));
    kubectl.run(&["wait", "--for=jsonpath={.status.phase}=Running", "pod/train", "--timeout=30s"]);
    assert_eq!(kubectl.run(&["logs", "--follow", "train"]), "working\ndone\n");
    kubectl.run(&["wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/train", "--timeout=30s"]);
    let long = ["--command", "--", "/bin/sh", "-c", "exec /bin/sleep 600"];
    kubectl.run(&[&["run", "long", &image, "--restart=Never"][..], &long].concat());
    kubectl.run(&["wait", "--for=condition=Ready", "pod/long", "--timeout=30s"]);
    let exec = ["exec", "long", "--", "/bin/sh", "-c", "echo $HOSTNAME; echo no >&2; exit 7"];
    let output = kubectl.output(&exec);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(output.stdout, b"long\n");
    assert!(output.stderr.starts_with(b"no\n"), "{output:?}");
    let with_input = ["exec", "--stdin", "long", "--", "/bin/sh", "-c", "while read line; do echo got $line; done"];
    assert_eq!(kubectl.with_input(&with_input, "one\ntwo\n"), "got one\ngot two\n");
    kubectl.run(&["delete", "pod", "long", "--dry-run=server"]);
    kubectl.run(&["get", "pod", "long"]);
    kubectl.run(&["delete", "pod", "long", "--grace-period=0", "--force"]);
    let table = kubectl.run(&["get", "pods"]);
    assert!(table.contains("train") && table.contains("0/1") && table.contains("Completed"), "{table}");
    let quota = kubectl.run(&["get", "quota"]);
    assert!(quota.contains("requests.nvidia.com/gpu: 0/1"), "{quota}");
    kubectl.run(&["create", "configmap", "settings", "--from-literal=a=1"]);
    kubectl.run(&["create", "secret", "generic", "keys", "--from-literal=token=x"]);
    kubectl.run(&["delete", "configmap", "settings", "--dry-run=server"]);
    let manifest = folder.path().join("map.yaml");
    std::fs::write(&manifest, "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {a: \"2\"}}")
        .unwrap();
    kubectl.run(&["apply", "--filename", manifest.to_str().unwrap()]);
    assert_eq!(kubectl.run(&["get", "configmap", "settings", "-o", "jsonpath={.data.a}"]), "2");
    let refused = kubectl.output(&["run", "x", &image, "--overrides={\"spec\":{\"hostNetwork\":true}}"]);
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("spec.hostNetwork: guests of this host"), "{refused}");
    assert!(kubectl.run(&["delete", "pod", "train"]).contains("deleted"));
    host.site().remove(LeaseId(1)).await.unwrap();
    host.assert_empty();
}
