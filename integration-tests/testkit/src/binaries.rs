//! The Kubernetes programs: found, downloaded or built by `scripts/kubernetes-binaries`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sha2::{Digest, Sha256};
use tokio::process::Command;

use crate::port::random;

/// The script and the modules it builds from, carried along so that an installed `comity` has them too.
const SCRIPT: &str = include_str!("../../../scripts/kubernetes-binaries");
const MODULES: [(&str, &str); 25] = [
    ("kubernetes/go.mod", include_str!("../go/kubernetes/go.mod")),
    ("kubernetes/go.sum", include_str!("../go/kubernetes/go.sum")),
    ("kubernetes/tools.go", include_str!("../go/kubernetes/tools.go")),
    ("etcd/go.mod", include_str!("../go/etcd/go.mod")),
    ("etcd/go.sum", include_str!("../go/etcd/go.sum")),
    ("etcd/tools.go", include_str!("../go/etcd/tools.go")),
    ("kwok/go.mod", include_str!("../go/kwok/go.mod")),
    ("kwok/go.sum", include_str!("../go/kwok/go.sum")),
    ("kwok/tools.go", include_str!("../go/kwok/tools.go")),
    ("programs/go.mod", include_str!("../go/programs/go.mod")),
    ("programs/go.sum", include_str!("../go/programs/go.sum")),
    ("programs/pause/main.go", include_str!("../go/programs/pause/main.go")),
    ("programs/probe/main.go", include_str!("../go/programs/probe/main.go")),
    ("programs/gpu-plugin/main.go", include_str!("../go/programs/gpu-plugin/main.go")),
    ("coredns/go.mod", include_str!("../go/coredns/go.mod")),
    ("coredns/go.sum", include_str!("../go/coredns/go.sum")),
    ("coredns/main.go", include_str!("../go/coredns/main.go")),
    ("liqo/go.mod", include_str!("../go/liqo/go.mod")),
    ("liqo/go.sum", include_str!("../go/liqo/go.sum")),
    ("liqo/tools.go", include_str!("../go/liqo/tools.go")),
    ("liqo/chart/main.go", include_str!("../go/liqo/chart/main.go")),
    ("wireguard/go.mod", include_str!("../go/wireguard/go.mod")),
    ("wireguard/go.sum", include_str!("../go/wireguard/go.sum")),
    ("wireguard/tools.go", include_str!("../go/wireguard/tools.go")),
    ("kubernetes-binaries", SCRIPT),
];

/// What the programs are for. Each need includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// A control plane with simulated nodes.
    ControlPlane,
    /// Also kubelet, kube-proxy and the programs inside real nodes.
    RealNodes,
    /// Also CoreDNS and Liqo, for the pods of real clusters.
    Liqo,
    /// Also what only benchmarks compare with: `liqoctl` and `wireguard-go`.
    Benchmark,
}

impl Needs {
    /// The options of the script.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::ControlPlane => &[],
            Self::RealNodes => &["--kubelets"],
            Self::Liqo => &["--liqo"],
            Self::Benchmark => &["--liqo", "--bench"],
        }
    }

    /// The programs, and the folder of a chart, that must be there.
    fn programs(self) -> impl Iterator<Item = &'static str> {
        let all: [(Self, &[&str]); 4] = [
            (Self::ControlPlane, &CONTROL_PLANE),
            (Self::RealNodes, &REAL_NODES),
            (Self::Liqo, &LIQO),
            (Self::Benchmark, &BENCHMARK),
        ];
        all.into_iter().filter(move |(needs, _)| *needs <= self).flat_map(|(_, programs)| programs).copied()
    }
}

/// Why the programs are not there.
#[derive(Debug, thiserror::Error)]
pub enum BinariesError {
    /// Neither `COMITY_CACHE` nor `XDG_CACHE_HOME` nor `HOME` says where to keep them.
    #[error("there is no folder for the Kubernetes programs: set COMITY_CACHE or HOME")]
    NoCache,
    /// The script could not be written or started.
    #[error("cannot run kubernetes-binaries from {}", path.display())]
    Run {
        /// Where it is or should be.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The script gave up; its reason went to standard error.
    #[error("kubernetes-binaries ended with {0}; its last line above says why")]
    Failed(std::process::ExitStatus),
    /// A program is not where it should be.
    #[error("there is no {program} in {}", folder.display())]
    Missing {
        /// The program.
        program: &'static str,
        /// The folder.
        folder: PathBuf,
    },
}

/// A folder with the programs.
#[derive(Debug, Clone)]
pub struct Binaries {
    folder: PathBuf,
    cache: PathBuf,
}

impl Binaries {
    /// Finds, downloads or builds the programs. Progress goes to standard error. Some 10 ms when the cache has
    /// them; some eight minutes when all must be built on two cores.
    ///
    /// # Errors
    ///
    /// When a program can be got in none of the ways, or there is nowhere to keep it.
    pub async fn ensure(needs: Needs) -> Result<Self, BinariesError> {
        let cache = cache_folder().ok_or(BinariesError::NoCache)?;
        let modules = unpack(&cache).map_err(|source| BinariesError::Run { path: cache.clone(), source })?;
        let script = modules.join("kubernetes-binaries");
        let mut command = Command::new("bash");
        command.arg(&script).arg("--modules").arg(&modules).args(needs.options());
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
        for program in needs.programs() {
            if !binaries.folder.join(program).exists() {
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

    /// Where this machine keeps what is made once and used by every run.
    pub(crate) fn cache(&self) -> &Path {
        &self.cache
    }

    /// The path of one program.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

const CONTROL_PLANE: [&str; 6] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "etcd", "kwok"];
const REAL_NODES: [&str; 5] = ["kubelet", "kube-proxy", "pause", "probe", "gpu-plugin"];
const LIQO: [&str; 7] = [
    "coredns",
    "liqo-controller-manager",
    "liqo-crd-replicator",
    "liqo-webhook",
    "liqo-virtual-kubelet",
    "render-chart",
    "liqo-chart",
];
const BENCHMARK: [&str; 2] = ["liqoctl", "wireguard-go"];

fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("COMITY_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("comity")))
        .or_else(|| set("HOME").map(|folder| folder.join(".cache/comity")))
}

/// Writes the script and the modules to a folder named for their content, whole or not at all.
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
        // Another process was quicker with the same content.
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
        let programs = |needs: Needs| needs.programs().collect::<Vec<_>>();
        assert_eq!(programs(Needs::ControlPlane), CONTROL_PLANE);
        assert!(programs(Needs::RealNodes).starts_with(&CONTROL_PLANE));
        assert!(programs(Needs::Liqo).starts_with(&programs(Needs::RealNodes)));
        assert!(programs(Needs::Liqo).contains(&"coredns") && !programs(Needs::RealNodes).contains(&"coredns"));
        assert!(programs(Needs::Benchmark).ends_with(&BENCHMARK));
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
        for module in ["kubernetes", "etcd", "kwok", "programs", "coredns", "liqo", "wireguard"] {
            let sums = MODULES.iter().find(|(path, _)| *path == format!("{module}/go.sum")).unwrap().1;
            assert!(sums.lines().all(|line| line.contains(" h1:")), "{module}");
            assert!(sums.lines().count() > 10, "{module}");
        }
    }
}
