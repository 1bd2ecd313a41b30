//! A site with its own folder, fake GPUs and an image of busybox.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use comity_agent_delivery::{ApiCredential, DonorDelivery as _, DonorLease, render_kubeconfig};
use comity_agent_model::gpu_demand::GpuDemand;
use comity_agent_model::lease::placement::{DeviceShare, NodePlacement, Placement};
use comity_agent_site::{SiteDelivery, SiteSettings, podman_command};
use comity_runtime::{Clock, SeededEntropy, SystemClock, SystemEntropy};
use comity_testkit::{CANARY_IMAGE, ContainerGpus, missing_for_containers, requirements, write_canary_image};
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{DeleteParams, LogParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Busybox.
pub(crate) const IMAGE: &str = CANARY_IMAGE;
const GPUS: u32 = 3;
/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);

static SITES: AtomicU32 = AtomicU32::new(0);

/// A running site, and the files that it needs.
pub(crate) struct HostUnderTest {
    /// Absent while the agent is restarted.
    site: Option<SiteDelivery>,
    pub(crate) settings: SiteSettings,
    pub(crate) state: tempfile::TempDir,
    gpus: ContainerGpus,
}

/// Whether this machine can run containers; says what is missing.
pub(crate) fn can_run(test: &str) -> bool {
    requirements::met(test, &missing_for_containers())
}

impl HostUnderTest {
    /// Starts a site with three GPUs.
    pub(crate) async fn start() -> Self {
        Self::start_with(SiteSettings::default()).await
    }

    /// As [`start`](Self::start), with other settings.
    pub(crate) async fn start_with(settings: SiteSettings) -> Self {
        let gpus = ContainerGpus::make(&format!("test-{}", SITES.fetch_add(1, Ordering::Relaxed)), GPUS).unwrap();
        let local_images = vec!["comity.local/*".to_owned()];
        let settings = SiteSettings { devices: gpus.kind.clone(), local_images, ..settings };
        let state = tempfile::tempdir().unwrap();
        let site = open(state.path(), &settings).await;
        let host = Self { site: Some(site), settings, state, gpus };
        let scratch = tempfile::tempdir().unwrap();
        let archive = scratch.path().join("image.tar");
        fs::create_dir(scratch.path().join("root")).unwrap();
        write_canary_image(&scratch.path().join("root"), &archive).unwrap();
        host.podman(&["load", "--quiet", "--input", archive.to_str().unwrap()]);
        host
    }

    /// Beginning of the paths of the GPUs' device nodes.
    pub(crate) fn gpu_path(&self) -> &str {
        &self.gpus.path
    }

    /// Ends the agent's part, and starts it again; containers go on.
    pub(crate) async fn restart(&mut self) {
        self.site = None;
        self.site = Some(open(self.state.path(), &self.settings).await);
    }

    /// The running site.
    pub(crate) fn site(&self) -> &SiteDelivery {
        self.site.as_ref().expect("it runs")
    }

    /// Runs podman on the site's store.
    pub(crate) fn podman(&self, arguments: &[&str]) -> String {
        let mut command = podman_command(&self.settings, self.state.path());
        let output = command.args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// A lease of GPUs, and its API.
    pub(crate) async fn lend(&self, id: u64, gpus: &[u32]) -> LentLease {
        let lease = lease(id, gpus);
        self.site().prepare(&lease).await.unwrap();
        let credential = self.site().credential(&lease).await.unwrap();
        let kubeconfig = render_kubeconfig(lease.lease_id, &credential, &self.site().address().to_string());
        LentLease { client: client(kubeconfig.expose()).await, kubeconfig: kubeconfig.expose().clone(), credential }
    }

    /// Nothing of any pod is left: no container, secret, volume or record.
    pub(crate) fn assert_empty(&self) {
        assert_eq!(self.podman(&["ps", "--all", "--quiet"]), "", "containers");
        assert_eq!(self.podman(&["secret", "ls", "--quiet"]), "", "secrets");
        for folder in ["volumes", "pods", "objects"] {
            let files: Vec<_> = fs::read_dir(self.state.path().join("site").join(folder)).unwrap().collect();
            assert!(files.is_empty(), "{folder}: {files:?}");
        }
    }
}

impl Drop for HostUnderTest {
    fn drop(&mut self) {
        let run = |arguments: &[&str]| podman_command(&self.settings, self.state.path()).args(arguments).output();
        for arguments in [&["rm", "--force", "--all", "--time=0"][..], &["rmi", "--force", "--all"]] {
            _ = run(arguments);
        }
        let command = podman_command(&self.settings, self.state.path());
        let folder = command.get_args().find_map(|argument| argument.to_str()?.strip_prefix("--runroot="));
        _ = fs::remove_dir_all(folder.expect("it has one"));
    }
}

async fn open(state: &Path, settings: &SiteSettings) -> SiteDelivery {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    SiteDelivery::start(state, Some(settings.clone()), clock, Arc::new(SystemEntropy)).await.unwrap()
}

/// A lease of this host for an hour: two cores and 512 MiB for each GPU.
pub(crate) fn lease(id: u64, gpus: &[u32]) -> DonorLease {
    let count = gpus.len() as u64;
    let share = |gpu: &u32| DeviceShare { device: *gpu, milli: 1_000, units: 1, mig_starts: Vec::new() };
    let node = NodePlacement {
        node: "n".into(),
        devices: gpus.iter().map(share).collect(),
        cpu_milli: 2_000 * count,
        memory_mib: 512 * count,
        functions: Vec::new(),
    };
    let placement = Placement {
        nodes: vec![node],
        resource_name: "nvidia.com/gpu".into(),
        resource_count: count,
        ..Placement::new("here".parse().unwrap())
    };
    DonorLease {
        lease_id: LeaseId(id),
        tenant: "vision".into(),
        origin: "polytechnic".into(),
        target_namespace: String::new(),
        placement,
        gpus: GpuDemand::default(),
        fencing_token: 1,
        ends_at_ms: SystemClock::new().unix_ms() + 3_600_000,
    }
}

/// Entropy for sites that run no pods.
pub(crate) fn seeded() -> Arc<SeededEntropy> {
    Arc::new(SeededEntropy::new(5))
}

pub(crate) async fn client(kubeconfig: &str) -> Client {
    let kubeconfig = kube::config::Kubeconfig::from_yaml(kubeconfig).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    Client::try_from(kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap()).unwrap()
}

/// A lease as its tenant has it.
pub(crate) struct LentLease {
    pub(crate) client: Client,
    pub(crate) kubeconfig: String,
    pub(crate) credential: ApiCredential,
}

impl LentLease {
    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    /// Makes a pod of one container that runs a script.
    pub(crate) async fn run(&self, name: &str, script: &str, more: Value) -> Result<Pod, kube::Error> {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "restartPolicy": "Never", "containers": [
                { "name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", script] },
            ]},
        });
        merge(&mut pod, more);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.pods().create(&PostParams::default(), &pod).await
    }

    /// Waits until a pod's status is as wanted.
    pub(crate) async fn wait(&self, name: &str, wanted: impl Fn(&PodStatus) -> bool) -> PodStatus {
        let wait = async {
            loop {
                let status = self.pods().get(name).await.unwrap().status.unwrap();
                if wanted(&status) {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(status) => status,
            Err(_) => panic!("{name}: {:#?}", self.pods().get(name).await.map(|pod| pod.status)),
        }
    }

    /// Waits for the end of a pod; returns its phase, exit code and log.
    pub(crate) async fn ended(&self, name: &str) -> (String, i32, String) {
        let status = self.wait(name, has_ended).await;
        let state = status.container_statuses.unwrap().remove(0).state.unwrap();
        let code = state.terminated.unwrap().exit_code;
        (status.phase.unwrap(), code, self.pods().logs(name, &LogParams::default()).await.unwrap())
    }

    /// Deletes a pod, and waits until it is gone.
    pub(crate) async fn delete(&self, name: &str, grace: u32) {
        self.pods().delete(name, &DeleteParams::default().grace_period(grace)).await.unwrap();
        let gone = async {
            while self.pods().get_opt(name).await.unwrap().is_some() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.unwrap();
    }
}

pub(crate) fn has_ended(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

pub(crate) fn is_running(status: &PodStatus) -> bool {
    status.phase.as_deref() == Some("Running")
}

/// Puts the fields of `more` over those of `object`; lists are merged by position.
fn merge(object: &mut Value, more: Value) {
    match (object, more) {
        (Value::Object(object), Value::Object(more)) => {
            for (key, value) in more {
                merge(object.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(items), Value::Array(more)) => {
            for (index, value) in more.into_iter().enumerate() {
                match items.get_mut(index) {
                    Some(item) => merge(item, value),
                    None => items.push(value),
                }
            }
        }
        (object, more) => *object = more,
    }
}
