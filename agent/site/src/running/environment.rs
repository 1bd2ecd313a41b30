//! Variables and files that a container gets from ConfigMaps, Secrets and its pod.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{EnvVarSource, ObjectFieldSelector, Pod};

use crate::objects::{ObjectKind, Objects};
use crate::running::pod_plan::{ContainerPlan, FileItem, FileSource, check_variable, expand};

/// Where values come from.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub(crate) lease: LeaseId,
    pub(crate) objects: &'a Objects,
    pub(crate) pod: &'a Pod,
}

/// The value of a variable. No `Debug`: it may be that of a Secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) value: String,
    /// Whether it holds something of a Secret.
    pub(crate) is_secret: bool,
}

impl Sources<'_> {
    /// All variables of a container: those of whole objects first, as in Kubernetes.
    ///
    /// # Errors
    /// A sentence that names what is missing; the pod waits for it.
    pub(crate) fn variables(&self, container: &ContainerPlan) -> Result<BTreeMap<String, Variable>, String> {
        let mut variables = BTreeMap::new();
        for source in &container.env_from {
            let prefix = source.prefix.as_deref().unwrap_or_default();
            let reference = match (&source.config_map_ref, &source.secret_ref) {
                (Some(map), _) => (ObjectKind::ConfigMap, &map.name, map.optional),
                (None, Some(secret)) => (ObjectKind::Secret, &secret.name, secret.optional),
                (None, None) => continue,
            };
            let (kind, name, optional) = reference;
            for (key, value) in self.data(kind, name, optional.unwrap_or(false))? {
                let name = format!("{prefix}{key}");
                // As in Kubernetes, keys that are no names are passed over.
                if check_variable(&name, "").is_ok() {
                    let value = text(value, &name)?;
                    variables.insert(name, Variable { value, is_secret: kind == ObjectKind::Secret });
                }
            }
        }
        for variable in &container.env {
            let value = match (&variable.value, &variable.value_from) {
                (_, Some(source)) => match self.value_from(source, &variable.name)? {
                    Some(value) => value,
                    None => continue,
                },
                (text, None) => {
                    let text = text.as_deref().unwrap_or_default();
                    let is_secret = holds_secret(text, &variables);
                    Variable { value: expanded(text, &variables), is_secret }
                }
            };
            variables.insert(variable.name.clone(), value);
        }
        Ok(variables)
    }

    fn value_from(&self, source: &EnvVarSource, variable: &str) -> Result<Option<Variable>, String> {
        let (kind, name, key, optional) = match source {
            EnvVarSource { field_ref: Some(field), .. } => {
                return Ok(Some(Variable { value: self.field(field)?, is_secret: false }));
            }
            EnvVarSource { config_map_key_ref: Some(key), .. } => {
                (ObjectKind::ConfigMap, &key.name, &key.key, key.optional)
            }
            EnvVarSource { secret_key_ref: Some(key), .. } => (ObjectKind::Secret, &key.name, &key.key, key.optional),
            _ => return Err(format!("variable {variable} has a source that this host does not know")),
        };
        let optional = optional.unwrap_or(false);
        match self.data(kind, name, optional)?.remove(key) {
            Some(value) => {
                let value = text(value, variable)?;
                Ok(Some(Variable { value, is_secret: kind == ObjectKind::Secret }))
            }
            None if optional => Ok(None),
            None => Err(format!("{} {name:?} has no key {key:?}", kind.name())),
        }
    }

    /// Writes the files of a volume into an empty folder.
    ///
    /// # Errors
    /// As [`variables`](Self::variables).
    pub(crate) fn write_files(&self, sources: &[FileSource], mode: u32, folder: &Path) -> Result<(), String> {
        for source in sources {
            let files = match source {
                FileSource::ConfigMap { name, items, optional } => {
                    self.files(ObjectKind::ConfigMap, name, items, *optional)?
                }
                FileSource::Secret { name, items, optional } => {
                    self.files(ObjectKind::Secret, name, items, *optional)?
                }
                FileSource::Fields(fields) => {
                    let file = |(field, path): &(_, String)| Ok((path.clone(), self.field(field)?.into_bytes()));
                    fields.iter().map(file).collect::<Result<_, String>>()?
                }
            };
            for (path, content) in files {
                write_file(&folder.join(&path), &content, mode)
                    .map_err(|error| format!("file {path:?} of a volume cannot be written: {error}"))?;
            }
        }
        Ok(())
    }

    fn files(
        &self,
        kind: ObjectKind,
        name: &str,
        items: &[FileItem],
        optional: bool,
    ) -> Result<BTreeMap<String, Vec<u8>>, String> {
        let mut data = self.data(kind, name, optional)?;
        if items.is_empty() {
            return Ok(data);
        }
        let mut files = BTreeMap::new();
        for FileItem { key, path } in items {
            match data.remove(key) {
                Some(content) => _ = files.insert(path.clone(), content),
                None if optional => {}
                None => return Err(format!("{} {name:?} has no key {key:?}", kind.name())),
            }
        }
        Ok(files)
    }

    fn data(&self, kind: ObjectKind, name: &str, optional: bool) -> Result<BTreeMap<String, Vec<u8>>, String> {
        match self.objects.data(self.lease, kind, name) {
            Some(data) => Ok(data),
            None if optional => Ok(BTreeMap::new()),
            None => Err(format!("{} {name:?} does not exist", kind.name())),
        }
    }

    /// A field of the pod (Kubernetes: Downward API).
    fn field(&self, field: &ObjectFieldSelector) -> Result<String, String> {
        let metadata = &self.pod.metadata;
        let path = field.field_path.as_str();
        let entry = |map: &Option<BTreeMap<String, String>>, key: &str| {
            map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default()
        };
        let all = |map: &Option<BTreeMap<String, String>>| {
            let lines = map.iter().flatten().map(|(key, value)| format!("{key}={value:?}"));
            lines.collect::<Vec<_>>().join("\n")
        };
        let key = |prefix: &str| path.strip_prefix(prefix).and_then(|rest| rest.strip_suffix("']"));
        if let Some(key) = key("metadata.labels['") {
            return Ok(entry(&metadata.labels, key));
        }
        if let Some(key) = key("metadata.annotations['") {
            return Ok(entry(&metadata.annotations, key));
        }
        let spec = self.pod.spec.as_ref();
        Ok(match path {
            "metadata.name" => metadata.name.clone().unwrap_or_default(),
            "metadata.namespace" => metadata.namespace.clone().unwrap_or_default(),
            "metadata.uid" => metadata.uid.clone().unwrap_or_default(),
            "metadata.labels" => all(&metadata.labels),
            "metadata.annotations" => all(&metadata.annotations),
            "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
            "spec.serviceAccountName" => spec.and_then(|spec| spec.service_account_name.clone()).unwrap_or_default(),
            // Pods of this host have no address of their own.
            "status.podIP" | "status.podIPs" | "status.hostIP" | "status.hostIPs" => "127.0.0.1".to_owned(),
            other => return Err(format!("this host does not know the field {other:?} of a pod")),
        })
    }
}

/// Whether a text refers to a variable that holds something of a Secret.
pub(crate) fn holds_secret(text: &str, variables: &BTreeMap<String, Variable>) -> bool {
    variables.iter().any(|(name, variable)| variable.is_secret && text.contains(&format!("$({name})")))
}

/// A text with its references replaced.
pub(crate) fn expanded(text: &str, variables: &BTreeMap<String, Variable>) -> String {
    expand(text, |name| variables.get(name).map(|variable| variable.value.as_str()))
}

fn text(value: Vec<u8>, variable: &str) -> Result<String, String> {
    // The value may be that of a Secret: it is not quoted.
    let text = String::from_utf8(value).ok().filter(|text| !text.contains('\0'));
    text.ok_or_else(|| format!("the value of variable {variable} is no text; mount it as a file"))
}

fn write_file(path: &Path, content: &[u8], mode: u32) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, content)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests;
