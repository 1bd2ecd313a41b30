//! NVIDIA GPUs of this host, as nvidia-smi lists them; or at least that the PCI bus has some.

use std::fs;
use std::io::{Error, ErrorKind};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;

/// Fields of a line, in this order.
const QUERY: &str = "--query-gpu=name,uuid,memory.total,driver_version,compute_cap,pci.bus_id,mig.mode.current";
/// How long nvidia-smi may take: it loads the driver if no process uses it.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// PCI vendor NVIDIA.
const NVIDIA_VENDOR: &str = "0x10de";
/// PCI classes of display controllers: VGA and 3D.
const DISPLAY_CLASSES: [&str; 2] = ["0x0300", "0x0302"];
/// Message of nvidia-smi on a host whose driver has no GPU; it then fails.
const NO_DEVICES: &str = "No devices were found";
/// Characters of a message of nvidia-smi that are shown, at most.
const MAX_MESSAGE_CHARS: usize = 200;

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundGpu {
    /// Model, as GPU Feature Discovery writes it.
    pub product: String,
    /// "GPU-…".
    pub uuid: String,
    /// Memory.
    pub memory_mib: u64,
    /// Driver.
    pub driver_version: String,
    /// As in "9.0".
    pub compute_capability: String,
    /// Family, as in "hopper"; empty if this version does not know it.
    pub architecture: &'static str,
    /// The nearest NUMA node.
    pub numa: Option<u32>,
    /// Whether it is partitioned.
    pub is_mig: bool,
}

/// GPUs of this host.
#[derive(Debug)]
pub enum FoundGpus {
    /// Those that nvidia-smi lists; may be none.
    Listed(Vec<FoundGpu>),
    /// nvidia-smi does not list them.
    Unlisted {
        /// Number of GPUs on the PCI bus; 0 if only nvidia-smi could tell.
        on_pci: usize,
        /// Why they are not listed.
        problem: NvidiaSmiError,
    },
}

/// Why nvidia-smi listed no GPUs.
#[derive(Debug, thiserror::Error)]
pub enum NvidiaSmiError {
    /// It is not installed.
    #[error("nvidia-smi is not installed")]
    Missing,
    /// It cannot be started.
    #[error("nvidia-smi cannot be run: {0}")]
    NotRun(Error),
    /// It failed.
    #[error("nvidia-smi failed ({status}): {message}")]
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// First line that it printed, shortened.
        message: String,
    },
    /// It hangs.
    #[error("nvidia-smi did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
}

/// Looks for GPUs.
pub async fn find() -> FoundGpus {
    let root = Path::new("/");
    let mut command = Command::new("nvidia-smi");
    command.args([QUERY, "--format=csv,noheader,nounits"]);
    let listed = list(command, ANSWERS_WITHIN).await;
    found(listed, root)
}

fn found(listed: Result<String, NvidiaSmiError>, root: &Path) -> FoundGpus {
    match (listed, pci_devices(root)) {
        (Ok(csv), _) => FoundGpus::Listed(parse(&csv, root)),
        (Err(NvidiaSmiError::Missing), 0) => FoundGpus::Listed(Vec::new()),
        (Err(NvidiaSmiError::Failed { message, .. }), 0) if message.contains(NO_DEVICES) => {
            FoundGpus::Listed(Vec::new())
        }
        (Err(problem), on_pci) => FoundGpus::Unlisted { on_pci, problem },
    }
}

/// Runs nvidia-smi; returns what it prints.
async fn list(mut command: Command, within: Duration) -> Result<String, NvidiaSmiError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
    let child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => NvidiaSmiError::Missing,
        _ => NvidiaSmiError::NotRun(error),
    })?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let output = match tokio::time::timeout(within, child.wait_with_output()).await {
        Ok(output) => output.map_err(NvidiaSmiError::NotRun)?,
        Err(_) => {
            // A wrapper script's children would outlive it. The group may be gone already.
            _ = group.map(|group| kill_process_group(group, Signal::KILL));
            return Err(NvidiaSmiError::TimedOut(within));
        }
    };
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(printed);
    }
    let message = String::from_utf8_lossy(&output.stderr);
    // It writes most of its errors to standard output.
    let first = message.lines().chain(printed.lines()).map(str::trim).find(|line| !line.is_empty());
    let message = first.unwrap_or("it printed nothing").chars().take(MAX_MESSAGE_CHARS).collect();
    Err(NvidiaSmiError::Failed { status: output.status, message })
}

/// Reads the lines of nvidia-smi; leaves out those that it does not understand.
pub(super) fn parse(csv: &str, root: &Path) -> Vec<FoundGpu> {
    csv.lines().filter_map(|line| parse_line(line, root)).collect()
}

fn parse_line(line: &str, root: &Path) -> Option<FoundGpu> {
    // nvidia-smi writes nothing else. Other characters could end a comment or a string of the inventory that is written
    // from this line.
    if !line.chars().all(|letter| letter.is_ascii_graphic() || letter == ' ') {
        return None;
    }
    let mut fields = line.split(',').map(str::trim);
    let mut next = || fields.next().filter(|field| !field.is_empty());
    let (name, uuid, memory, driver, capability, bus) = (next()?, next()?, next()?, next()?, next()?, next()?);
    let is_mig = next() == Some("Enabled");
    let name = name.replace(' ', "-");
    Some(FoundGpu {
        product: if name.starts_with("NVIDIA-") { name } else { format!("NVIDIA-{name}") },
        uuid: uuid.to_owned(),
        memory_mib: memory.parse().ok()?,
        driver_version: driver.to_owned(),
        compute_capability: capability.to_owned(),
        architecture: architecture(capability),
        numa: numa_node(bus, root),
        is_mig,
    })
}

/// The family of a compute capability.
fn architecture(capability: &str) -> &'static str {
    match capability {
        "5.0" | "5.2" | "5.3" => "maxwell",
        "6.0" | "6.1" | "6.2" => "pascal",
        "7.0" | "7.2" => "volta",
        "7.5" => "turing",
        "8.0" | "8.6" | "8.7" => "ampere",
        "8.9" => "ada-lovelace",
        "9.0" => "hopper",
        newer if newer.starts_with("10.") || newer.starts_with("11.") || newer.starts_with("12.") => "blackwell",
        _ => "",
    }
}

/// The NUMA node of a device; nvidia-smi writes its bus with eight digits of the domain, sysfs with four.
fn numa_node(bus: &str, root: &Path) -> Option<u32> {
    let bus = bus.to_lowercase();
    let bus = bus.get(bus.len().checked_sub("0000:00:00.0".len())?..).filter(|bus| !bus.contains('/'))?;
    let file = root.join("sys/bus/pci/devices").join(bus).join("numa_node");
    // -1 without NUMA.
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn pci_devices(root: &Path) -> usize {
    let devices = fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten();
    let is_gpu = |device: &fs::DirEntry| {
        let text = |name: &str| fs::read_to_string(device.path().join(name)).unwrap_or_default();
        let class = text("class");
        text("vendor").trim() == NVIDIA_VENDOR && DISPLAY_CLASSES.iter().any(|display| class.starts_with(display))
    };
    devices.filter(is_gpu).count()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn lines_of_nvidia_smi_become_gpus() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/bus/pci/devices/0000:9b:00.0");
        fs::create_dir_all(&device).unwrap();
        for (file, text) in [("numa_node", "1\n"), ("vendor", "0x10de\n"), ("class", "0x030200\n")] {
            fs::write(device.join(file), text).unwrap();
        }
        let csv = "NVIDIA H100 80GB HBM3, GPU-1, 81559, 550.107.02, 9.0, 00000000:9B:00.0, Disabled\n\
            Tesla T4, GPU-2, 15360, 550.107.02, 7.5, 00000000:3B:00.0, [N/A]\nNo devices were found\n";
        let gpus = parse(csv, root.path());
        assert_eq!(gpus.len(), 2, "{gpus:?}");
        let (h100, t4) = (&gpus[0], &gpus[1]);
        assert_eq!((h100.product.as_str(), h100.architecture, h100.numa), ("NVIDIA-H100-80GB-HBM3", "hopper", Some(1)));
        assert_eq!((t4.product.as_str(), t4.memory_mib, t4.numa, t4.is_mig), ("NVIDIA-Tesla-T4", 15_360, None, false));
        for control in ['\r', '\u{1b}', '\u{2028}'] {
            let line = format!("Tesla T4, GPU-2{control}nodes:, 15360, 550.107.02, 7.5, 00000000:3B:00.0, [N/A]");
            assert_eq!(parse(&line, root.path()), [], "{line:?}");
        }
        assert_eq!(numa_node("../../../../", root.path()), None);
        assert_eq!(pci_devices(root.path()), 1);
        let missing = found(Err(NvidiaSmiError::Missing), root.path());
        assert!(matches!(missing, FoundGpus::Unlisted { on_pci: 1, .. }), "{missing:?}");
    }

    /// The result of a script in place of nvidia-smi, on a host without GPUs on its PCI bus.
    async fn found_by(script: &str, within: Duration) -> FoundGpus {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        found(list(command, within).await, Path::new("/nonexistent"))
    }

    #[tokio::test]
    async fn children_of_a_wrapper_that_hangs_end_with_it() {
        let pid_file = tempfile::NamedTempFile::new().unwrap();
        let script = format!("sleep 600 & echo $! > {}; wait", pid_file.path().display());
        let FoundGpus::Unlisted { problem, .. } = found_by(&script, Duration::from_millis(500)).await else {
            panic!("listed")
        };
        assert!(matches!(problem, NvidiaSmiError::TimedOut(_)), "{problem}");
        let child = fs::read_to_string(pid_file.path()).unwrap().trim().parse().unwrap();
        let child = Pid::from_raw(child).unwrap();
        let gone = async {
            // A process that nobody waits for yet may still be sent signals.
            let ended = || {
                let stat = fs::read_to_string(format!("/proc/{}/stat", child.as_raw_nonzero()));
                stat.map_or(true, |stat| stat.contains(") Z "))
            };
            while !ended() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.unwrap();
    }

    #[tokio::test]
    async fn a_failing_nvidia_smi_is_no_host_without_gpus() {
        let long = Duration::from_secs(60);
        for (script, within, expected) in [
            ("echo 'no driver' >&2; echo more >&2; exit 9", long, "nvidia-smi failed (exit status: 9): no driver"),
            ("echo 'on standard output'; exit 1", long, "nvidia-smi failed (exit status: 1): on standard output"),
            ("exit 3", long, "nvidia-smi failed (exit status: 3): it printed nothing"),
            ("sleep 60 & wait", Duration::from_millis(20), "nvidia-smi did not answer within 0 s"),
        ] {
            let FoundGpus::Unlisted { on_pci: 0, problem } = found_by(script, within).await else { panic!("{script}") };
            assert_eq!(problem.to_string(), expected);
        }
        let noise = "head -c 9000 /dev/zero | tr '\\0' x >&2; exit 1";
        let FoundGpus::Unlisted { problem, .. } = found_by(noise, long).await else { panic!("listed") };
        assert!(problem.to_string().ends_with('x') && problem.to_string().len() < 300, "{problem}");
        let none = found_by("echo 'No devices were found'; exit 6", long).await;
        assert!(matches!(&none, FoundGpus::Listed(gpus) if gpus.is_empty()), "{none:?}");
        let missing = list(Command::new("/nonexistent/nvidia-smi"), long).await;
        assert!(matches!(missing, Err(NvidiaSmiError::Missing)), "{missing:?}");
    }
}
