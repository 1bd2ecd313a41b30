//! Finds, downloads or builds the Kubernetes programs with `scripts/kubernetes-binaries`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sha2::{Digest, Sha256};
use tokio::process::Command;

use crate::port::random;

/// The script and its modules, embedded so that an installed `comity` has them too.
const BINARIES_SCRIPT: &str = include_str!("../../../scripts/kubernetes-binaries");
const MODULES: [(&str, &str); 65] = [
    ("kubernetes/go.mod", include_str!("../go/kubernetes/go.mod")),
    ("kubernetes/go.sum", include_str!("../go/kubernetes/go.sum")),
    ("kubernetes/tools.go", include_str!("../go/kubernetes/tools.go")),
    ("etcd/go.mod", include_str!("../go/etcd/go.mod")),
    ("etcd/go.sum", include_str!("../go/etcd/go.sum")),
    ("etcd/tools.go", include_str!("../go/etcd/tools.go")),
    ("metrics-server/go.mod", include_str!("../go/metrics-server/go.mod")),
    ("metrics-server/go.sum", include_str!("../go/metrics-server/go.sum")),
    ("metrics-server/tools.go", include_str!("../go/metrics-server/tools.go")),
    ("kwok/go.mod", include_str!("../go/kwok/go.mod")),
    ("kwok/go.sum", include_str!("../go/kwok/go.sum")),
    ("kwok/tools.go", include_str!("../go/kwok/tools.go")),
    ("programs/go.mod", include_str!("../go/programs/go.mod")),
    ("programs/go.sum", include_str!("../go/programs/go.sum")),
    ("programs/pause/main.go", include_str!("../go/programs/pause/main.go")),
    ("programs/probe/main.go", include_str!("../go/programs/probe/main.go")),
    ("programs/dra-driver/main.go", include_str!("../go/programs/dra-driver/main.go")),
    ("programs/dra-driver/cri.go", include_str!("../go/programs/dra-driver/cri.go")),
    ("programs/line/main.go", include_str!("../go/programs/line/main.go")),
    ("nvidia/go.mod", include_str!("../go/nvidia/go.mod")),
    ("nvidia/go.sum", include_str!("../go/nvidia/go.sum")),
    ("nvidia/tools.go", include_str!("../go/nvidia/tools.go")),
    ("container-toolkit/go.mod", include_str!("../go/container-toolkit/go.mod")),
    ("container-toolkit/go.sum", include_str!("../go/container-toolkit/go.sum")),
    ("container-toolkit/tools.go", include_str!("../go/container-toolkit/tools.go")),
    ("nvidia/nvml/gpu_box.h", include_str!("../go/nvidia/nvml/gpu_box.h")),
    ("nvidia/nvml/gpu_box.c", include_str!("../go/nvidia/nvml/gpu_box.c")),
    ("nvidia/nvml/boards.c", include_str!("../go/nvidia/nvml/boards.c")),
    ("nvidia/nvml/devices.c", include_str!("../go/nvidia/nvml/devices.c")),
    ("nvidia/nvml/mig_instances.c", include_str!("../go/nvidia/nvml/mig_instances.c")),
    ("nvidia/nvml/xid_events.c", include_str!("../go/nvidia/nvml/xid_events.c")),
    ("coredns/go.mod", include_str!("../go/coredns/go.mod")),
    ("coredns/go.sum", include_str!("../go/coredns/go.sum")),
    ("coredns/main.go", include_str!("../go/coredns/main.go")),
    ("liqo/go.mod", include_str!("../go/liqo/go.mod")),
    ("liqo/go.sum", include_str!("../go/liqo/go.sum")),
    ("liqo/tools.go", include_str!("../go/liqo/tools.go")),
    ("liqo/chart/main.go", include_str!("../go/liqo/chart/main.go")),
    ("liqo-1.1.2/go.mod", include_str!("../go/liqo-1.1.2/go.mod")),
    ("liqo-1.1.2/go.sum", include_str!("../go/liqo-1.1.2/go.sum")),
    ("liqo-1.1.2/tools.go", include_str!("../go/liqo-1.1.2/tools.go")),
    ("liqo-1.0.3/go.mod", include_str!("../go/liqo-1.0.3/go.mod")),
    ("liqo-1.0.3/go.sum", include_str!("../go/liqo-1.0.3/go.sum")),
    ("liqo-1.0.3/tools.go", include_str!("../go/liqo-1.0.3/tools.go")),
    ("versitygw/go.mod", include_str!("../go/versitygw/go.mod")),
    ("versitygw/go.sum", include_str!("../go/versitygw/go.sum")),
    ("versitygw/tools.go", include_str!("../go/versitygw/tools.go")),
    ("calico/go.mod", include_str!("../go/calico/go.mod")),
    ("calico/go.sum", include_str!("../go/calico/go.sum")),
    ("calico/tools.go", include_str!("../go/calico/tools.go")),
    ("cert-manager/go.mod", include_str!("../go/cert-manager/go.mod")),
    ("cert-manager/go.sum", include_str!("../go/cert-manager/go.sum")),
    ("cert-manager/tools.go", include_str!("../go/cert-manager/tools.go")),
    ("cainjector/go.mod", include_str!("../go/cainjector/go.mod")),
    ("cainjector/go.sum", include_str!("../go/cainjector/go.sum")),
    ("cainjector/main.go", include_str!("../go/cainjector/main.go")),
    ("gitops/go.mod", include_str!("../go/gitops/go.mod")),
    ("gitops/go.sum", include_str!("../go/gitops/go.sum")),
    ("kueue/go.mod", include_str!("../go/kueue/go.mod")),
    ("kueue/go.sum", include_str!("../go/kueue/go.sum")),
    ("kueue/tools.go", include_str!("../go/kueue/tools.go")),
    ("wireguard/go.mod", include_str!("../go/wireguard/go.mod")),
    ("wireguard/go.sum", include_str!("../go/wireguard/go.sum")),
    ("wireguard/tools.go", include_str!("../go/wireguard/tools.go")),
    ("kubernetes-binaries", BINARIES_SCRIPT),
];

/// The set of programs to get. Each set includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// An etcd group.
    Etcd,
    /// A control plane with simulated nodes.
    ControlPlane,
    /// Also kubelet, kube-proxy and the programs inside real nodes.
    RealNodes,
    /// Also CoreDNS, Liqo and an S3 server, for the pods of real clusters.
    Liqo,
    /// Also the programs that only benchmarks use: `liqoctl` and `wireguard-go`.
    Benchmark,
}

impl Needs {
    /// The options of the script.
    fn options(self, liqo: LiqoVersion) -> Vec<&'static str> {
        match self {
            Self::Etcd => vec!["--only-etcd"],
            Self::ControlPlane => vec![],
            Self::RealNodes => vec!["--kubelets"],
            Self::Liqo => vec!["--liqo-version", liqo.number()],
            Self::Benchmark => vec!["--liqo-version", liqo.number(), "--bench"],
        }
    }

    /// The required programs, and the folder of a chart.
    fn programs(self, liqo: LiqoVersion) -> Vec<String> {
        let all: [(Self, &[&str]); 6] = [
            (Self::Etcd, &ETCD),
            (Self::ControlPlane, &CONTROL_PLANE),
            (Self::RealNodes, &REAL_NODES),
            (Self::RealNodes, &NVIDIA),
            (Self::Liqo, &BESIDE_LIQO),
            (Self::Benchmark, &BENCHMARK),
        ];
        let fixed = all.into_iter().filter(|(needs, _)| *needs <= self).flat_map(|(_, programs)| programs);
        let of_liqo = LIQO.iter().filter(|_| self >= Self::Liqo).map(|name| liqo.file(name));
        fixed.map(|program| (*program).to_owned()).chain(of_liqo).collect()
    }
}

/// A version of Liqo that test clusters can run: the oldest and the newest that agents support, and one between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LiqoVersion {
    /// 1.0.3.
    V1_0_3,
    /// 1.1.2.
    V1_1_2,
    /// 1.2.0.
    #[default]
    V1_2_0,
}

impl LiqoVersion {
    const ALL: [Self; 3] = [Self::V1_0_3, Self::V1_1_2, Self::V1_2_0];

    /// The version number, such as `1.2.0`.
    #[must_use]
    pub const fn number(self) -> &'static str {
        match self {
            Self::V1_0_3 => "1.0.3",
            Self::V1_1_2 => "1.1.2",
            Self::V1_2_0 => "1.2.0",
        }
    }

    /// The tag of the images, such as `v1.2.0`.
    pub(crate) fn tag(self) -> String {
        format!("v{}", self.number())
    }

    /// File name of a program, by its name in Liqo's chart, or of the chart.
    pub(crate) fn file(self, name: &str) -> String {
        format!("liqo-{}-{}", self.number(), name.strip_prefix("liqo-").unwrap_or(name))
    }

    /// The version in `COMITY_TEST_LIQO`, or the newest if it is not set.
    ///
    /// # Errors
    ///
    /// When it names another version.
    pub fn from_environment() -> Result<Self, BinariesError> {
        match std::env::var("COMITY_TEST_LIQO") {
            Ok(number) if !number.is_empty() => number.parse(),
            _ => Ok(Self::default()),
        }
    }
}

impl std::str::FromStr for LiqoVersion {
    type Err = BinariesError;

    fn from_str(number: &str) -> Result<Self, BinariesError> {
        let found = Self::ALL.into_iter().find(|version| version.number() == number);
        found.ok_or_else(|| BinariesError::UnknownLiqo(number.to_owned()))
    }
}

/// Why programs are missing.
#[derive(Debug, thiserror::Error)]
pub enum BinariesError {
    /// None of `COMITY_CACHE`, `XDG_CACHE_HOME` and `HOME` is set.
    #[error("there is no folder for the Kubernetes programs: set COMITY_CACHE or HOME")]
    NoCache,
    /// The script could not be written or started.
    #[error("cannot run kubernetes-binaries from {}", path.display())]
    Run {
        /// Path of the script.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The script failed; standard error has the reason.
    #[error("kubernetes-binaries ended with {0}; its last line above says why")]
    Failed(std::process::ExitStatus),
    /// A program is missing.
    #[error("there is no {program} in {}", folder.display())]
    Missing {
        /// The program.
        program: String,
        /// The folder.
        folder: PathBuf,
    },
    /// Test clusters cannot run this version of Liqo.
    #[error("COMITY_TEST_LIQO names Liqo '{0}'; test clusters can run 1.0.3, 1.1.2 and 1.2.0")]
    UnknownLiqo(String),
}

/// A folder with the programs.
#[derive(Debug, Clone)]
pub struct Binaries {
    folder: PathBuf,
    cache: PathBuf,
}

impl Binaries {
    /// Finds, downloads or builds the programs. Progress goes to standard error. Some 10 ms when the cache has
    /// them; some ten minutes when all must be built on two cores.
    ///
    /// # Errors
    ///
    /// When a program cannot be found, downloaded or built, or no cache folder is known.
    pub async fn ensure(needs: Needs) -> Result<Self, BinariesError> {
        Self::with_liqo(needs, LiqoVersion::default()).await
    }

    /// As [`Binaries::ensure`], with a version of Liqo where Liqo is needed. The first time, another version than the
    /// newest takes some three minutes more.
    ///
    /// # Errors
    ///
    /// As [`Binaries::ensure`].
    pub async fn with_liqo(needs: Needs, liqo: LiqoVersion) -> Result<Self, BinariesError> {
        Self::get(&needs.options(liqo), needs.programs(liqo)).await
    }

    /// As [`Binaries::ensure`] for [`Needs::RealNodes`], and the programs of Calico. The first time takes about two
    /// minutes longer.
    ///
    /// # Errors
    ///
    /// As [`Binaries::ensure`].
    pub async fn with_calico() -> Result<Self, BinariesError> {
        let real_nodes = Needs::RealNodes.programs(LiqoVersion::default());
        let programs = real_nodes.into_iter().chain(CALICO.map(str::to_owned));
        Self::get(&["--calico"], programs.collect()).await
    }

    /// As [`Binaries::ensure`] for [`Needs::ControlPlane`], and the programs of cert-manager. The first time takes about
    /// five minutes longer.
    ///
    /// # Errors
    ///
    /// As [`Binaries::ensure`].
    pub async fn with_cert_manager() -> Result<Self, BinariesError> {
        let control_plane = Needs::ControlPlane.programs(LiqoVersion::default());
        let programs = control_plane.into_iter().chain(CERT_MANAGER.map(str::to_owned));
        Self::get(&["--cert-manager"], programs.collect()).await
    }

    /// Gets the programs of Kueue, too. The first time takes about five minutes longer.
    ///
    /// # Errors
    ///
    /// As [`Binaries::ensure`].
    pub async fn add_kueue(&self) -> Result<(), BinariesError> {
        let programs = Needs::ControlPlane.programs(LiqoVersion::default()).into_iter();
        Self::get(&["--kueue"], programs.chain(KUEUE.map(str::to_owned)).collect()).await.map(drop)
    }

    /// As [`Binaries::ensure`] for [`Needs::ControlPlane`], and the CustomResourceDefinitions of Flux and Argo CD.
    ///
    /// # Errors
    ///
    /// As [`Binaries::ensure`].
    pub async fn with_gitops() -> Result<Self, BinariesError> {
        let control_plane = Needs::ControlPlane.programs(LiqoVersion::default());
        let programs = control_plane.into_iter().chain([GITOPS.to_owned()]);
        Self::get(&["--gitops"], programs.collect()).await
    }

    /// Runs the script with `options`, and checks that it got `programs`.
    async fn get(options: &[&str], programs: Vec<String>) -> Result<Self, BinariesError> {
        let cache = cache_folder().ok_or(BinariesError::NoCache)?;
        let modules = unpack(&cache).map_err(|source| BinariesError::Run { path: cache.clone(), source })?;
        let script = modules.join("kubernetes-binaries");
        let mut command = Command::new("bash");
        command.arg(&script).arg("--modules").arg(&modules).args(options);
        let output = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|source| BinariesError::Run { path: script, source })?;
        if !output.status.success() {
            return Err(BinariesError::Failed(output.status));
        }
        let binaries = Self { folder: PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()), cache };
        for program in programs {
            if !binaries.folder.join(&program).exists() {
                return Err(BinariesError::Missing { program, folder: binaries.folder });
            }
        }
        Ok(binaries)
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Folder of files that this machine creates once and every run uses.
    pub(crate) fn cache(&self) -> &Path {
        &self.cache
    }

    /// The path of one program.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

const GITOPS: &str = "gitops-crds.yaml";
const ETCD: [&str; 1] = ["etcd"];
const CONTROL_PLANE: [&str; 5] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok"];
const REAL_NODES: [&str; 6] = ["kubelet", "kube-proxy", "pause", "probe", "dra-driver", "line"];
/// NVIDIA's programs, and the stand-in for the library of its driver.
const NVIDIA: [&str; 4] =
    ["nvidia-device-plugin", "gpu-feature-discovery", "nvidia-container-runtime", "libnvidia-ml.so.1"];
const BESIDE_LIQO: [&str; 3] = ["coredns", "render-chart", "versitygw"];
/// Programs and chart of each version of Liqo.
const LIQO: [&str; 6] = ["controller-manager", "crd-replicator", "webhook", "virtual-kubelet", "ipam", "chart"];
/// Calico's programs and its CustomResourceDefinitions.
const CALICO: [&str; 3] = ["calico-felix", "calico-cni", "calico-crds.yaml"];
/// cert-manager's programs and its CustomResourceDefinitions.
const CERT_MANAGER: [&str; 3] = ["cert-manager-controller", "cert-manager-cainjector", "cert-manager-crds.yaml"];
/// Kueue's manager, its CustomResourceDefinitions and its webhooks.
const KUEUE: [&str; 3] = ["kueue", "kueue-crds.yaml", "kueue-webhooks.yaml"];
const BENCHMARK: [&str; 2] = ["liqoctl", "wireguard-go"];

fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("COMITY_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("comity")))
        .or_else(|| set("HOME").map(|folder| folder.join(".cache/comity")))
}

/// Writes the script and the modules atomically to a folder named by their content.
fn unpack(cache: &Path) -> io::Result<PathBuf> {
    let mut digest = Sha256::new();
    for (path, text) in MODULES {
        digest.update(path);
        digest.update([0]);
        digest.update(text);
        digest.update([0]);
    }
    let folder = cache.join("modules").join(hex::encode(&digest.finalize()[..8]));
    if folder.exists() {
        return Ok(folder);
    }
    let part = folder.with_extension(format!("{:016x}.part", random()));
    for (path, text) in MODULES {
        let path = part.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&part))?;
        fs::File::create(path)?.write_all(text.as_bytes())?;
    }
    match fs::rename(&part, &folder) {
        Ok(()) => Ok(folder),
        // Another process wrote the same content first.
        Err(_) if folder.exists() => fs::remove_dir_all(&part).map(|()| folder),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn each_need_includes_the_ones_before_it() {
        let programs = |needs: Needs| needs.programs(LiqoVersion::default());
        assert_eq!(programs(Needs::Etcd), ETCD);
        assert_eq!(programs(Needs::ControlPlane), [&ETCD[..], &CONTROL_PLANE].concat());
        assert!(programs(Needs::RealNodes)[1..=CONTROL_PLANE.len()] == CONTROL_PLANE);
        let has = |needs: Needs, name: &str| programs(needs).iter().any(|program| program == name);
        assert!(has(Needs::RealNodes, "nvidia-device-plugin") && !has(Needs::ControlPlane, "nvidia-device-plugin"));
        assert!(has(Needs::Liqo, "kubelet") && has(Needs::Liqo, "coredns") && !has(Needs::RealNodes, "coredns"));
        assert!(has(Needs::Liqo, "liqo-1.2.0-webhook") && !has(Needs::RealNodes, "liqo-1.2.0-webhook"));
        assert!(has(Needs::Benchmark, "liqo-1.2.0-chart") && has(Needs::Benchmark, "liqoctl"));
    }

    #[test]
    fn versions_of_liqo_have_their_own_files_and_modules() {
        for version in LiqoVersion::ALL {
            assert_eq!(version.number().parse::<LiqoVersion>().unwrap(), version);
            assert!(Needs::Liqo.programs(version).contains(&format!("liqo-{}-virtual-kubelet", version.number())));
            let pinned = format!("github.com/liqotech/liqo {}", version.tag());
            let pins = |(path, text): &(&str, &str)| path.ends_with("/go.mod") && text.contains(&pinned);
            assert_eq!(MODULES.iter().filter(|module| pins(module)).count(), 1, "{pinned}");
        }
        assert_eq!(LiqoVersion::V1_0_3.file("liqo-controller-manager"), "liqo-1.0.3-controller-manager");
        assert!("1.0".parse::<LiqoVersion>().unwrap_err().to_string().contains("1.1.2"));
    }

    #[test]
    fn modules_are_unpacked_once() {
        let cache = tempfile::tempdir().unwrap();
        let first = unpack(cache.path()).unwrap();
        assert_eq!(unpack(cache.path()).unwrap(), first);
        for (path, text) in MODULES {
            assert_eq!(fs::read_to_string(first.join(path)).unwrap(), text);
        }
        assert_eq!(fs::read_dir(cache.path().join("modules")).unwrap().count(), 1);
    }

    #[test]
    fn every_module_has_its_checksums() {
        for module in [
            "kubernetes",
            "etcd",
            "kwok",
            "programs",
            "nvidia",
            "coredns",
            "liqo",
            "liqo-1.1.2",
            "liqo-1.0.3",
            "versitygw",
            "calico",
            "cert-manager",
            "cainjector",
            "kueue",
            "wireguard",
        ] {
            let sums = MODULES.iter().find(|(path, _)| *path == format!("{module}/go.sum")).unwrap().1;
            assert!(sums.lines().all(|line| line.contains(" h1:")), "{module}");
            assert!(sums.lines().count() > 1, "{module}");
        }
    }
}
