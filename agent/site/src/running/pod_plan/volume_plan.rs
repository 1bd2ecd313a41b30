//! Volumes of a pod: empty folders, memory, and files from ConfigMaps, Secrets and the pod itself.

use std::collections::BTreeMap;

use comity_agent_kubernetes::pod_request::amounts;
use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, ObjectFieldSelector, Volume, VolumeProjection};

use super::{BYTES_IN_MIB, PodRefusal};

/// Memory of an `emptyDir` of medium Memory without a limit; it counts for the container's memory, too.
const DEFAULT_MEMORY_MIB: u64 = 64;

/// One volume.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum VolumePlan {
    /// A folder that lives as long as the pod.
    Folder,
    /// Memory of each container of its own.
    Memory { size_mib: u64 },
    /// Files, written when the pod starts.
    Files { sources: Vec<FileSource>, mode: u32 },
}

/// Where files of a volume come from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FileSource {
    ConfigMap {
        name: String,
        items: Vec<FileItem>,
        optional: bool,
    },
    Secret {
        name: String,
        items: Vec<FileItem>,
        optional: bool,
    },
    /// Fields of the pod, each with its path in the volume.
    Fields(Vec<(ObjectFieldSelector, String)>),
}

/// A key and the path of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileItem {
    pub(crate) key: String,
    pub(crate) path: String,
}

/// Mode of files that state none.
const DEFAULT_MODE: u32 = 0o644;

pub(super) fn read(volumes: &[Volume]) -> Result<BTreeMap<String, VolumePlan>, PodRefusal> {
    super::bounded("spec.volumes", volumes.len(), super::MAX_PARTS)?;
    let mut plans = BTreeMap::new();
    for (index, volume) in volumes.iter().enumerate() {
        let at = format!("spec.volumes[{index}]");
        // The name is that of a folder.
        if !comity_types::is_dns_label(&volume.name) {
            return Err(PodRefusal::new(format!("{at}.name"), format!("{:?} is no DNS label", volume.name)));
        }
        if plans.insert(volume.name.clone(), plan(volume, &at)?).is_some() {
            return Err(PodRefusal::new(format!("{at}.name"), format!("{:?} is given twice", volume.name)));
        }
    }
    Ok(plans)
}

fn plan(volume: &Volume, at: &str) -> Result<VolumePlan, PodRefusal> {
    if let Some(folder) = &volume.empty_dir {
        return match folder.medium.as_deref() {
            None | Some("") => Ok(VolumePlan::Folder),
            Some("Memory") => {
                let limit = folder.size_limit.clone().map(|limit| BTreeMap::from([("memory".to_owned(), limit)]));
                let bytes = limit.and_then(|limit| amounts(&limit).remove("memory"));
                let size_mib = bytes.map_or(DEFAULT_MEMORY_MIB, |bytes| bytes.div_ceil(BYTES_IN_MIB)).max(1);
                Ok(VolumePlan::Memory { size_mib })
            }
            Some(other) => {
                Err(PodRefusal::new(format!("{at}.emptyDir.medium"), format!("{other:?}; leave it out, or use Memory")))
            }
        };
    }
    if let Some(map) = &volume.config_map {
        let source = FileSource::ConfigMap {
            name: map.name.clone(),
            items: items(map.items.as_deref(), &format!("{at}.configMap"))?,
            optional: map.optional.unwrap_or(false),
        };
        return Ok(VolumePlan::Files { sources: vec![source], mode: mode(map.default_mode) });
    }
    if let Some(secret) = &volume.secret {
        let source = FileSource::Secret {
            name: secret.secret_name.clone().unwrap_or_default(),
            items: items(secret.items.as_deref(), &format!("{at}.secret"))?,
            optional: secret.optional.unwrap_or(false),
        };
        return Ok(VolumePlan::Files { sources: vec![source], mode: mode(secret.default_mode) });
    }
    if let Some(downward) = &volume.downward_api {
        let source = FileSource::Fields(fields(downward.items.as_deref(), &format!("{at}.downwardAPI"))?);
        return Ok(VolumePlan::Files { sources: vec![source], mode: mode(downward.default_mode) });
    }
    if let Some(projected) = &volume.projected {
        let mut sources = Vec::new();
        for (index, projection) in projected.sources.iter().flatten().enumerate() {
            sources.extend(self::projection(projection, &format!("{at}.projected.sources[{index}]"))?);
        }
        return Ok(VolumePlan::Files { sources, mode: mode(projected.default_mode) });
    }
    Err(PodRefusal::new(at, "it names no source; write emptyDir: {}"))
}

fn projection(projection: &VolumeProjection, at: &str) -> Result<Option<FileSource>, PodRefusal> {
    Ok(if let Some(map) = &projection.config_map {
        Some(FileSource::ConfigMap {
            name: map.name.clone(),
            items: items(map.items.as_deref(), at)?,
            optional: map.optional.unwrap_or(false),
        })
    } else if let Some(secret) = &projection.secret {
        Some(FileSource::Secret {
            name: secret.name.clone(),
            items: items(secret.items.as_deref(), at)?,
            optional: secret.optional.unwrap_or(false),
        })
    } else if let Some(downward) = &projection.downward_api {
        Some(FileSource::Fields(fields(downward.items.as_deref(), at)?))
    } else {
        let reason = "this host has ConfigMaps, Secrets and fields of the pod, and no tokens of a cluster";
        return Err(PodRefusal::new(at, reason));
    })
}

fn items(items: Option<&[KeyToPath]>, at: &str) -> Result<Vec<FileItem>, PodRefusal> {
    let item = |item: &KeyToPath| {
        check_path(&item.path, at)?;
        if item.mode.is_some() {
            return Err(PodRefusal::new(format!("{at}.items"), "mode: this host sets defaultMode for all files"));
        }
        Ok(FileItem { key: item.key.clone(), path: item.path.clone() })
    };
    items.unwrap_or_default().iter().map(item).collect()
}

fn fields(items: Option<&[DownwardAPIVolumeFile]>, at: &str) -> Result<Vec<(ObjectFieldSelector, String)>, PodRefusal> {
    let item = |item: &DownwardAPIVolumeFile| {
        check_path(&item.path, at)?;
        if item.mode.is_some() {
            return Err(PodRefusal::new(format!("{at}.items"), "mode: this host sets defaultMode for all files"));
        }
        let field = item.field_ref.clone();
        let field = field.ok_or_else(|| PodRefusal::new(at, "this host knows fieldRef, and no resourceFieldRef"))?;
        Ok((field, item.path.clone()))
    };
    items.unwrap_or_default().iter().map(item).collect()
}

/// The path of a file in a volume. It is below the volume's folder on the host.
fn check_path(path: &str, at: &str) -> Result<(), PodRefusal> {
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    if path.is_empty() || path.len() > 512 || path.contains('\0') || !path.split('/').all(is_part) {
        return Err(PodRefusal::new(format!("{at}.items"), format!("{path:?} is no relative path without ..")));
    }
    Ok(())
}

/// Only the bits of permissions.
fn mode(given: Option<i32>) -> u32 {
    given.and_then(|mode| u32::try_from(mode).ok()).map_or(DEFAULT_MODE, |mode| mode & 0o777)
}
