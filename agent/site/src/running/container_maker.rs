//! Makes the containers of a pod: image, variables, files, devices.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use comity_runtime::atomic_file;
use comity_types::LeaseId;
use serde_json::{Map, Value, json};

use crate::objects::ObjectKind;
use crate::podman::{ContainerSpec, PodmanError};
use crate::running::environment::{Sources, expanded, holds_secret};
use crate::running::host_parts::HostParts;
use crate::running::pod_book::PodEntry;
use crate::running::pod_plan::{ContainerPlan, MountPlan, PodPlan, VolumePlan};

/// Folder beside those of volumes; no volume has this name.
const HOST_FILES: &str = "host_files";
/// Longest value that podman keeps as a secret.
const MAX_SECRET_BYTES: usize = 500_000;
/// What is wrong is in the pod, or in what it names.
const CONFIG: &str = "CreateContainerConfigError";

/// Why a container cannot be started now: a reason as in Kubernetes, and a sentence.
pub(crate) struct NotStarted(pub(crate) &'static str, pub(crate) String);

/// Makes containers of one pod.
pub(crate) struct ContainerMaker<'a> {
    pub(crate) host: &'a HostParts,
    pub(crate) lease: LeaseId,
    pub(crate) plan: &'a PodPlan,
    pub(crate) entry: &'a PodEntry,
}

impl ContainerMaker<'_> {
    /// Makes a container.
    pub(crate) async fn create(&self, container: &ContainerPlan, index: usize) -> Result<(), NotStarted> {
        let podman = &self.host.podman;
        let image = self.pull(container).await?;
        let failed = |error: PodmanError| NotStarted("CreateContainerError", error.to_string());
        if container.non_root && container.user.is_none() {
            let user = podman.image_user(&image).await.map_err(failed)?;
            if user.is_empty() || user.split(':').next().is_none_or(|user| !user.parse().is_ok_and(|id: u32| id > 0)) {
                let message = "runAsNonRoot is set, and the image names no user by a number: set runAsUser";
                return Err(NotStarted(CONFIG, message.to_owned()));
            }
        }
        let sources = Sources { lease: self.lease, objects: &self.host.objects, pod: &self.entry.pod };
        let variables = sources.variables(container).map_err(|message| NotStarted(CONFIG, message))?;
        let expand = |texts: &[String]| {
            // Command lines are readable by all users of the host.
            match texts.iter().find(|text| holds_secret(text, &variables)) {
                Some(text) => {
                    Err(NotStarted(CONFIG, format!("{text:?} would show a Secret; read the variable in the command")))
                }
                None => Ok(texts.iter().map(|text| expanded(text, &variables)).collect::<Vec<_>>()),
            }
        };
        let mut spec = ContainerSpec {
            name: container_name(self.entry, index),
            pod_uid: self.entry.uid().to_owned(),
            image,
            command: expand(&container.command)?,
            args: expand(&container.args)?,
            user: container.user.clone(),
            working_dir: container.working_dir.clone(),
            hostname: self.plan.hostname.clone().unwrap_or_else(|| {
                self.entry.pod.metadata.name.iter().flat_map(|name| name.chars()).take(63).collect()
            }),
            network: self.host.settings.network.clone(),
            cpu_milli: container.cpu_milli.unwrap_or(self.entry.held.cpu_milli),
            memory_mib: container.memory_mib.unwrap_or(self.entry.held.memory_mib),
            devices: self.devices(container),
            read_only_root: container.read_only_root,
            tty: container.tty,
            dropped_capabilities: container.dropped_capabilities.clone(),
            ..ContainerSpec::default()
        };
        // Images that name all devices get none by that: hooks of NVIDIA's older toolkit would obey them.
        spec.env.push(("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned()));
        for (name, variable) in variables {
            // podman keeps no empty secrets.
            if variable.is_secret && !variable.value.is_empty() {
                if variable.value.len() > MAX_SECRET_BYTES {
                    let message = format!("variable {name} has more than {MAX_SECRET_BYTES} bytes; mount its Secret");
                    return Err(NotStarted(CONFIG, message));
                }
                let secret = format!("{}-{}", container_name(self.entry, index), spec.secrets.len());
                podman.put_secret(&secret, &variable.value).await.map_err(failed)?;
                spec.secrets.push((secret, name));
            } else {
                spec.env.push((name, variable.value));
            }
        }
        self.mount_host_files(&mut spec).map_err(|error| NotStarted(CONFIG, error.to_string()))?;
        for mount in &container.mounts {
            self.mount(mount, &sources, &mut spec).map_err(|message| NotStarted(CONFIG, message))?;
        }
        podman.create(&spec).await.map_err(failed)
    }

    /// The first of the pod's shares, as many as the container asks for.
    fn devices(&self, container: &ContainerPlan) -> Vec<String> {
        let mut wanted = container.units;
        let mut devices = Vec::new();
        for (device, units) in &self.entry.held.devices {
            if wanted > 0 {
                devices.push(format!("{}={device}", self.host.settings.devices));
                wanted = wanted.saturating_sub(u64::from(*units));
            }
        }
        devices
    }

    async fn pull(&self, container: &ContainerPlan) -> Result<String, NotStarted> {
        let image = &container.image;
        let wrong = |reason: &str| NotStarted("ErrImagePull", format!("image {image:?}: {reason}"));
        let local = self.host.settings.is_local(image);
        let (reference, auth) = if local {
            (image.clone(), None)
        } else {
            (self.host.settings.reference(image).map_err(|reason| wrong(&reason))?, self.auth_file()?)
        };
        let pulled = self.host.podman.pull(&reference, auth.as_deref(), local).await;
        if let Some(path) = &auth {
            _ = std::fs::remove_file(path);
        }
        pulled.map_err(|error| {
            tracing::info!(pod = self.entry.pod.metadata.name, image, %error, "an image of a guest is not pulled");
            wrong(error.of_pull())
        })
    }

    /// Writes the credentials of the pod's pull secrets, for as long as the pull takes.
    fn auth_file(&self) -> Result<Option<PathBuf>, NotStarted> {
        const KEY: &str = ".dockerconfigjson";
        let wrong = |message: String| NotStarted("ErrImagePull", message);
        let mut auths = Map::new();
        for name in &self.plan.pull_secrets {
            let data = self.host.objects.data(self.lease, ObjectKind::Secret, name);
            let data = data.ok_or_else(|| wrong(format!("Secret {name:?}, a pull secret, does not exist")))?;
            // The error might quote the credential.
            let config: Option<Value> = data.get(KEY).and_then(|bytes| serde_json::from_slice(bytes).ok());
            let config = config.ok_or_else(|| wrong(format!("Secret {name:?} has no JSON in its key {KEY}")))?;
            auths.extend(config["auths"].as_object().cloned().unwrap_or_default());
        }
        if auths.is_empty() {
            return Ok(None);
        }
        let path = self.host.volumes.join(format!("{}.auth", self.entry.uid()));
        let text = json!({ "auths": auths }).to_string();
        atomic_file::write(&path, text.as_bytes(), atomic_file::PRIVATE).map_err(|error| wrong(error.to_string()))?;
        Ok(Some(path))
    }

    /// podman's own files of these names are writable, and lie where nothing limits them.
    fn mount_host_files(&self, spec: &mut ContainerSpec) -> std::io::Result<()> {
        let folder = self.host.volumes.join(&spec.pod_uid).join(HOST_FILES);
        std::fs::create_dir_all(&folder)?;
        let hosts = format!("127.0.0.1 localhost {name}\n::1 localhost\n", name = spec.hostname);
        let mut files = vec![
            ("/etc/hosts", hosts),
            ("/etc/hostname", format!("{}\n", spec.hostname)),
            ("/run/.containerenv", String::new()),
        ];
        if spec.network == "none" {
            files.push(("/etc/resolv.conf", String::new()));
        }
        for (path, text) in files {
            let file = folder.join(path.rsplit('/').next().unwrap_or_default());
            std::fs::write(&file, text)?;
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644))?;
            spec.mounts.push((file, path.to_owned(), true));
        }
        Ok(())
    }

    fn mount(&self, mount: &MountPlan, sources: &Sources<'_>, spec: &mut ContainerSpec) -> Result<(), String> {
        let folder = self.host.volumes.join(&spec.pod_uid).join(&mount.volume);
        let failed = |error: std::io::Error| format!("volume {:?} cannot be made: {error}", mount.volume);
        match &self.plan.volumes[&mount.volume] {
            VolumePlan::Memory { size_mib } => spec.memory_mounts.push((mount.path.clone(), *size_mib)),
            VolumePlan::Folder => {
                std::fs::create_dir_all(&folder).map_err(failed)?;
                spec.mounts.push((folder, mount.path.clone(), mount.read_only));
            }
            VolumePlan::Files { sources: files, mode } => {
                if folder.exists() {
                    std::fs::remove_dir_all(&folder).map_err(failed)?;
                }
                std::fs::create_dir_all(&folder).map_err(failed)?;
                sources.write_files(files, *mode, &folder)?;
                let part = mount.sub_path.as_ref().map_or(folder.clone(), |path| folder.join(path));
                if !part.exists() {
                    return Err(format!("volume {:?} has no file {:?}", mount.volume, mount.sub_path));
                }
                spec.mounts.push((part, mount.path.clone(), true));
            }
        }
        Ok(())
    }
}

/// The name of a pod's container. Logs are read by it, too.
pub(crate) fn container_name(entry: &PodEntry, index: usize) -> String {
    format!("comity-{}-{index}", entry.uid())
}
