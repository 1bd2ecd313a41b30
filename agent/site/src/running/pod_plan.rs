//! What a pod asks of this host, read from its manifest.
//!
//! Every field has a rule (`field_rules`): it is read, it concerns scheduling alone, it is left out with a warning, or
//! the pod is refused with the field's name. A field without a rule is refused, so that no pod runs with less
//! isolation or other volumes than its author wrote.

mod expansion;
mod field_rules;
mod volume_plan;

use std::collections::BTreeMap;
use std::time::Duration;

use comity_agent_kubernetes::pod_request::{CPU, MEMORY, amounts};
use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVar, Pod, PodSecurityContext, PodSpec, ResourceRequirements, SecurityContext,
};
use serde_json::Value;

pub(crate) use self::expansion::expand;
pub(crate) use self::volume_plan::{FileItem, FileSource, VolumePlan};

/// Grace of a pod that states none, as in Kubernetes.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// Longest grace: a donor gets its devices back within a known time.
pub(crate) const MAX_GRACE: Duration = Duration::from_secs(600);
/// Most init containers of a pod.
const MAX_INIT_CONTAINERS: usize = 16;
/// Most variables, and most volumes, of a container.
const MAX_PARTS: usize = 256;
/// Longest reference of an image.
const MAX_IMAGE_CHARS: usize = 512;
const BYTES_IN_MIB: u64 = 1 << 20;
/// Least memory of a container: runtimes need some of it themselves.
const MIN_MEMORY_MIB: u64 = 8;

/// Why a pod is refused: the field, as its author wrote it, and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodRefusal {
    pub(crate) field: String,
    pub(crate) reason: String,
}

impl PodRefusal {
    fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

/// Whether containers that end are started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartPolicy {
    Never,
    OnFailure,
    Always,
}

/// A pod as this host runs it: init containers one after another, then the main one.
#[derive(Clone, Debug)]
pub(crate) struct PodPlan {
    pub(crate) inits: Vec<ContainerPlan>,
    pub(crate) main: ContainerPlan,
    pub(crate) restart: RestartPolicy,
    pub(crate) deadline: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) hostname: Option<String>,
    pub(crate) volumes: BTreeMap<String, VolumePlan>,
    pub(crate) pull_secrets: Vec<String>,
    /// What of the manifest has no effect here, a sentence each.
    pub(crate) warnings: Vec<String>,
}

/// One container.
#[derive(Clone, Debug)]
pub(crate) struct ContainerPlan {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) command: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<EnvVar>,
    pub(crate) env_from: Vec<EnvFromSource>,
    pub(crate) working_dir: Option<String>,
    /// "UID" or "UID:GID"; `None`: the image's user.
    pub(crate) user: Option<String>,
    pub(crate) non_root: bool,
    pub(crate) read_only_root: bool,
    pub(crate) tty: bool,
    pub(crate) dropped_capabilities: Vec<String>,
    pub(crate) mounts: Vec<MountPlan>,
    /// Limits; `None`: what the lease has left.
    pub(crate) cpu_milli: Option<u64>,
    pub(crate) memory_mib: Option<u64>,
    /// Shares of devices.
    pub(crate) units: u64,
}

/// A volume in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountPlan {
    pub(crate) volume: String,
    pub(crate) path: String,
    pub(crate) sub_path: Option<String>,
    pub(crate) read_only: bool,
}

impl PodPlan {
    /// Reads a manifest; `resource` counts the lease's devices.
    pub(crate) fn read(manifest: &Value, resource: &str) -> Result<Self, PodRefusal> {
        let warnings = field_rules::check(manifest)?;
        let pod: Pod = serde_json::from_value(manifest.clone())
            .map_err(|error| PodRefusal::new("spec", format!("it cannot be read: {error}")))?;
        let spec = pod.spec.ok_or_else(|| PodRefusal::new("spec", "it is missing"))?;
        Self::of_spec(&spec, resource, warnings)
    }

    /// Reads a pod that was taken before.
    pub(crate) fn of_stored(pod: &Pod, resource: &str) -> Result<Self, PodRefusal> {
        let manifest = serde_json::to_value(pod);
        let manifest = manifest.map_err(|error| PodRefusal::new("spec", format!("it cannot be written: {error}")))?;
        Self::read(&manifest, resource)
    }

    fn of_spec(spec: &PodSpec, resource: &str, warnings: Vec<String>) -> Result<Self, PodRefusal> {
        let [main] = spec.containers.as_slice() else {
            let reason = format!(
                "it has {}; a pod on this host has one container, and any number of init containers",
                spec.containers.len()
            );
            return Err(PodRefusal::new("spec.containers", reason));
        };
        let inits = spec.init_containers.as_deref().unwrap_or_default();
        bounded("spec.initContainers", inits.len(), MAX_INIT_CONTAINERS)?;
        let volumes = volume_plan::read(spec.volumes.as_deref().unwrap_or_default())?;
        let context = Reader { pod: spec.security_context.as_ref(), volumes: &volumes, resource };
        let restart = match spec.restart_policy.as_deref() {
            Some("Never") => RestartPolicy::Never,
            Some("OnFailure") => RestartPolicy::OnFailure,
            None | Some("Always") => RestartPolicy::Always,
            Some(other) => {
                return Err(PodRefusal::new(
                    "spec.restartPolicy",
                    format!("{other:?}; use Always, OnFailure or Never"),
                ));
            }
        };
        let init = |(at, container)| context.container(container, &format!("spec.initContainers[{at}]"));
        let plan = Self {
            inits: inits.iter().enumerate().map(init).collect::<Result<_, _>>()?,
            main: context.container(main, "spec.containers[0]")?,
            restart,
            deadline: seconds("spec.activeDeadlineSeconds", spec.active_deadline_seconds)?,
            grace: seconds("spec.terminationGracePeriodSeconds", spec.termination_grace_period_seconds)?
                .unwrap_or(DEFAULT_GRACE)
                .min(MAX_GRACE),
            hostname: hostname(spec.hostname.as_deref())?,
            volumes,
            pull_secrets: spec.image_pull_secrets.iter().flatten().map(|secret| secret.name.clone()).collect(),
            warnings,
        };
        let mut names: Vec<&str> = plan.containers().map(|container| container.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PodRefusal::new("spec.containers", format!("two containers are named {:?}", twice[0])));
        }
        Ok(plan)
    }

    /// All containers in the order in which they run.
    pub(crate) fn containers(&self) -> impl Iterator<Item = &ContainerPlan> {
        self.inits.iter().chain([&self.main])
    }
}

/// What containers share.
struct Reader<'a> {
    pod: Option<&'a PodSecurityContext>,
    volumes: &'a BTreeMap<String, VolumePlan>,
    resource: &'a str,
}

impl Reader<'_> {
    fn container(&self, container: &Container, at: &str) -> Result<ContainerPlan, PodRefusal> {
        let field = |name: &str| format!("{at}.{name}");
        let image = container.image.clone().filter(|image| !image.is_empty());
        let image = image.ok_or_else(|| PodRefusal::new(field("image"), "it is missing"))?;
        // Podman would take it for an option, or for a file.
        if !comity_types::is_dns_label(&container.name) {
            return Err(PodRefusal::new(field("name"), format!("{:?} is no DNS label", container.name)));
        }
        if !is_reference(&image) {
            return Err(PodRefusal::new(field("image"), format!("{image:?} is no name of an image in a registry")));
        }
        if container.image_pull_policy.as_deref() == Some("Never") {
            let reason = "Never; images of this host are its owner's: leave the field out";
            return Err(PodRefusal::new(field("imagePullPolicy"), reason));
        }
        bounded(&field("env"), container.env.as_deref().map_or(0, <[_]>::len), MAX_PARTS)?;
        bounded(&field("envFrom"), container.env_from.as_deref().map_or(0, <[_]>::len), MAX_PARTS)?;
        bounded(&field("volumeMounts"), container.volume_mounts.as_deref().map_or(0, <[_]>::len), MAX_PARTS)?;
        for (index, variable) in container.env.iter().flatten().enumerate() {
            check_variable(&variable.name, &format!("{at}.env[{index}].name"))?;
            let source = variable.value_from.as_ref();
            if source.is_some_and(|source| source.resource_field_ref.is_some() || source.file_key_ref.is_some()) {
                let reason = "this host knows fieldRef, configMapKeyRef and secretKeyRef";
                return Err(PodRefusal::new(format!("{at}.env[{index}].valueFrom"), reason));
            }
        }
        let security = container.security_context.as_ref();
        let (user, non_root) = self.user(security, at)?;
        let limits = self.limits(container.resources.as_ref(), at)?;
        let mount = |(index, mount)| self.mount(mount, &format!("{at}.volumeMounts[{index}]"));
        Ok(ContainerPlan {
            name: container.name.clone(),
            image,
            command: container.command.clone().unwrap_or_default(),
            args: container.args.clone().unwrap_or_default(),
            env: container.env.clone().unwrap_or_default(),
            env_from: container.env_from.clone().unwrap_or_default(),
            working_dir: container.working_dir.clone().filter(|dir| !dir.is_empty()),
            user,
            non_root,
            read_only_root: security.and_then(|security| security.read_only_root_filesystem).unwrap_or(false),
            tty: container.tty.unwrap_or(false),
            dropped_capabilities: dropped(security, at)?,
            mounts: container.volume_mounts.iter().flatten().enumerate().map(mount).collect::<Result<_, _>>()?,
            cpu_milli: limits.cpu_milli,
            memory_mib: limits.memory_mib,
            units: limits.units,
        })
    }

    fn user(&self, own: Option<&SecurityContext>, at: &str) -> Result<(Option<String>, bool), PodRefusal> {
        let of = |own: Option<Option<i64>>, pod: Option<Option<i64>>| own.flatten().or(pod.flatten());
        let uid = of(own.map(|own| own.run_as_user), self.pod.map(|pod| pod.run_as_user));
        let gid = of(own.map(|own| own.run_as_group), self.pod.map(|pod| pod.run_as_group));
        let non_root = own.and_then(|own| own.run_as_non_root).or(self.pod.and_then(|pod| pod.run_as_non_root));
        let non_root = non_root.unwrap_or(false);
        let id = |id: i64, name: &str| {
            let field = || format!("{at}.securityContext.{name}");
            // Users of a container are the first 65,536 of a user namespace.
            u16::try_from(id).map_err(|_| PodRefusal::new(field(), format!("{id}; this host has 0 to 65535")))
        };
        let user = match (uid, gid) {
            (None, None) => None,
            (None, Some(_)) => {
                let reason = "set, but runAsUser is not; state both";
                return Err(PodRefusal::new(format!("{at}.securityContext.runAsGroup"), reason));
            }
            (Some(uid), None) => Some(id(uid, "runAsUser")?.to_string()),
            (Some(uid), Some(gid)) => Some(format!("{}:{}", id(uid, "runAsUser")?, id(gid, "runAsGroup")?)),
        };
        if non_root && uid == Some(0) {
            let reason = "true, but runAsUser is 0";
            return Err(PodRefusal::new(format!("{at}.securityContext.runAsNonRoot"), reason));
        }
        Ok((user, non_root))
    }

    /// The limits, or the requests where there are none.
    fn limits(&self, resources: Option<&ResourceRequirements>, at: &str) -> Result<Limits, PodRefusal> {
        let Some(resources) = resources else { return Ok(Limits::default()) };
        let read = |list: Option<&BTreeMap<_, _>>, name: &str| {
            let Some(list) = list else { return Ok(BTreeMap::new()) };
            let read = amounts(list);
            match list.keys().find(|key| !read.contains_key(*key)) {
                Some(key) => {
                    let text = &list[key].0;
                    Err(PodRefusal::new(format!("{at}.resources.{name}.{key}"), format!("{text:?} is no quantity")))
                }
                None => Ok(read),
            }
        };
        let mut all = read(resources.requests.as_ref(), "requests")?;
        all.extend(read(resources.limits.as_ref(), "limits")?);
        let mut limits = Limits::default();
        for (name, amount) in all {
            let field = || format!("{at}.resources.limits.{name}");
            match name.as_str() {
                CPU if amount > 0 => limits.cpu_milli = Some(amount),
                MEMORY if amount > 0 => {
                    let mib = amount.div_ceil(BYTES_IN_MIB);
                    if mib < MIN_MEMORY_MIB {
                        let reason = format!("less than {MIN_MEMORY_MIB}Mi, which no container starts with");
                        return Err(PodRefusal::new(field(), reason));
                    }
                    limits.memory_mib = Some(mib);
                }
                // Counted by nobody here: field_rules warns of it.
                CPU | MEMORY | "ephemeral-storage" => {}
                name if name == self.resource => limits.units = amount,
                _ if amount == 0 => {}
                _ => {
                    let reason = format!("the lease has {}, cpu and memory", self.resource);
                    return Err(PodRefusal::new(field(), reason));
                }
            }
        }
        Ok(limits)
    }

    fn mount(&self, mount: &k8s_openapi::api::core::v1::VolumeMount, at: &str) -> Result<MountPlan, PodRefusal> {
        if !self.volumes.contains_key(&mount.name) {
            let reason = format!("spec.volumes has no volume {:?}", mount.name);
            return Err(PodRefusal::new(format!("{at}.name"), reason));
        }
        let path = &mount.mount_path;
        // Options of a mount are separated by commas and colons.
        let is_plain = |path: &str| !path.contains([',', ':']) && !path.split('/').any(|part| part == "..");
        if !path.starts_with('/') || path == "/" || !is_plain(path) {
            let reason = format!("{path:?}; write an absolute path below /, without commas, colons and ..");
            return Err(PodRefusal::new(format!("{at}.mountPath"), reason));
        }
        let sub_path = mount.sub_path.clone().filter(|path| !path.is_empty());
        if let Some(path) = sub_path.as_deref().filter(|path| path.starts_with('/') || !is_plain(path)) {
            let reason = format!("{path:?}; write a relative path without commas, colons and ..");
            return Err(PodRefusal::new(format!("{at}.subPath"), reason));
        }
        // A guest could put a link there that leads to any path of the host (CVE-2017-1002101).
        if sub_path.is_some() && !matches!(self.volumes[&mount.name], VolumePlan::Files { .. }) {
            let reason = "this host mounts parts of ConfigMaps and Secrets only; mount the whole volume";
            return Err(PodRefusal::new(format!("{at}.subPath"), reason));
        }
        Ok(MountPlan {
            volume: mount.name.clone(),
            path: path.clone(),
            sub_path,
            read_only: mount.read_only.unwrap_or(false),
        })
    }
}

#[derive(Default)]
struct Limits {
    cpu_milli: Option<u64>,
    memory_mib: Option<u64>,
    units: u64,
}

/// The names of variables go into command lines of podman.
pub(crate) fn check_variable(name: &str, field: &str) -> Result<(), PodRefusal> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit() || c == '-') || !name.chars().all(is_plain) {
        return Err(PodRefusal::new(field, format!("{name:?}; use letters, digits, _, - and .")));
    }
    // Which devices a container sees is for the lease to say.
    if name.eq_ignore_ascii_case("NVIDIA_VISIBLE_DEVICES") {
        return Err(PodRefusal::new(field, format!("{name}; the lease chooses the devices: leave it out")));
    }
    Ok(())
}

/// Whether a text is a reference of an image in a registry: others of podman's transports, as in "oci:/etc", read files
/// of the host.
fn is_reference(image: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/' | ':' | '@');
    let transports = [
        "oci",
        "dir",
        "docker",
        "docker-archive",
        "docker-daemon",
        "oci-archive",
        "containers-storage",
        "sif",
        "ostree",
        "tarball",
    ];
    let before = image.split_once(':').map(|(before, _)| before);
    image.len() <= MAX_IMAGE_CHARS
        && image.starts_with(|c: char| c.is_ascii_alphanumeric())
        && image.chars().all(is_plain)
        && !image.contains("//")
        && !image.contains(":/")
        && before.is_none_or(|before| !transports.contains(&before))
}

fn dropped(security: Option<&SecurityContext>, at: &str) -> Result<Vec<String>, PodRefusal> {
    let Some(capabilities) = security.and_then(|security| security.capabilities.as_ref()) else {
        return Ok(Vec::new());
    };
    if capabilities.add.as_ref().is_some_and(|added| !added.is_empty()) {
        let reason = "guests of this host get no more capabilities; leave it out";
        return Err(PodRefusal::new(format!("{at}.securityContext.capabilities.add"), reason));
    }
    let dropped = capabilities.drop.clone().unwrap_or_default();
    match dropped.iter().find(|name| name.is_empty() || !name.chars().all(|c| c.is_ascii_alphabetic() || c == '_')) {
        Some(name) => {
            let reason = format!("{name:?} is no name of a capability");
            Err(PodRefusal::new(format!("{at}.securityContext.capabilities.drop"), reason))
        }
        None => Ok(dropped),
    }
}

/// It becomes an option of podman, and a line of /etc/hosts.
fn hostname(given: Option<&str>) -> Result<Option<String>, PodRefusal> {
    match given.filter(|name| !name.is_empty()) {
        Some(name) if !comity_types::is_dns_label(name) => {
            Err(PodRefusal::new("spec.hostname", format!("{name:?} is no DNS label")))
        }
        name => Ok(name.map(str::to_owned)),
    }
}

fn seconds(field: &str, seconds: Option<i64>) -> Result<Option<Duration>, PodRefusal> {
    let read = |seconds: i64| {
        let whole = u64::try_from(seconds);
        whole.map(Duration::from_secs).map_err(|_| PodRefusal::new(field, format!("{seconds}; want 0 or more")))
    };
    seconds.map(read).transpose()
}

fn bounded(field: &str, count: usize, most: usize) -> Result<(), PodRefusal> {
    if count > most {
        return Err(PodRefusal::new(field, format!("it has {count} entries; at most {most} are read")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
