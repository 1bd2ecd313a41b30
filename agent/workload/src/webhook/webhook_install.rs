//! The cluster's owner installs the webhooks, with rights that the agent does not have: the Secret with which the agent
//! serves, and the registrations.

use std::fmt;
use std::time::{Duration, SystemTime};

use comity_agent_kubernetes::api::within_limit;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::Value;

use super::serving_secret::{self, SECRET, ServingSecret};
use super::{MANAGED_BY, Registration, WebhookSettings};

/// A certificate with less than this left is renewed.
const RENEW_BEFORE: Duration = Duration::from_secs(365 * 86_400);
/// Field manager of the owner's command.
const MANAGER: &str = "comity-agent-webhook";

/// Whether a certificate that is good is replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Renewal {
    /// Only if it ends within a year or is for another host.
    #[default]
    WhenNeeded,
    /// Certificate, key and paths, and nobody trusts the old ones: somebody else may have the key.
    Always,
}

/// Whether anything is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// Objects are written.
    #[default]
    Apply,
    /// The API server only checks them.
    DryRun,
}

/// What happened to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its kind and name.
    pub object: String,
    /// The change.
    pub kind: ChangeKind,
}

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is new.
    Created,
    /// It was another one.
    Changed,
    /// It is as it was.
    Unchanged,
    /// It is gone: this webhook is off.
    Removed,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ChangeKind::Created => "created",
            ChangeKind::Changed => "changed",
            ChangeKind::Unchanged => "unchanged",
            ChangeKind::Removed => "removed",
        };
        write!(f, "{}: {kind}", self.object)
    }
}

/// The Secret and the registrations that the owner applies.
pub struct WebhookObjects {
    /// Absent: cert-manager keeps it.
    secret: Option<Value>,
    registrations: Vec<Value>,
}

impl WebhookObjects {
    /// The objects for these settings; a good certificate in the cluster stays.
    ///
    /// # Errors
    /// A sentence that names the reason.
    pub fn plan(
        settings: &WebhookSettings,
        registrations: &[Registration],
        found: Option<&Secret>,
        renewal: Renewal,
        now: SystemTime,
    ) -> Result<Self, String> {
        let host = serving_secret::host(settings)?;
        let old = found.and_then(ServingSecret::read).filter(|_| renewal == Renewal::WhenNeeded);
        let trusted_at =
            |secret: &ServingSecret, at: SystemTime| secret.verify(&secret.certificates.ca_pem, settings, at);
        let secret = match old {
            Some(old) if trusted_at(&old, now + RENEW_BEFORE).is_ok() => old,
            Some(old) if old.cert_manager.is_some() => {
                trusted_at(&old, now).map_err(|reason| {
                    format!("cert-manager's certificate in Secret {SECRET} cannot serve {host}: {reason}")
                })?;
                old
            }
            None if found.is_some_and(serving_secret::is_cert_managers) => {
                return Err(format!(
                    "cert-manager keeps Secret {SECRET}: wait until it has a certificate, and renew it by cert-manager"
                ));
            }
            old => ServingSecret::make(&host, old.as_ref(), now)?,
        };
        Ok(Self {
            secret: secret.cert_manager.is_none().then(|| secret.object(settings)),
            registrations: registrations.iter().map(|registration| registration.object(settings, &secret)).collect(),
        })
    }

    /// The objects, in the order in which they are applied: a renewed CA is trusted before its certificate is shown.
    pub fn all(&self) -> impl Iterator<Item = &Value> {
        self.registrations.iter().chain(&self.secret)
    }
}

/// The Secret in the cluster.
///
/// # Errors
/// A sentence that names the reason.
pub async fn find_secret(client: &kube::Client, settings: &WebhookSettings) -> Result<Option<Secret>, String> {
    serving_secret::find(client, settings).await
}

/// Applies the objects, and removes the registrations of other webhooks of this agent.
///
/// # Errors
/// A sentence that names the object.
pub async fn install(client: &kube::Client, objects: &WebhookObjects, effect: Effect) -> Result<Vec<Change>, String> {
    let is_dry = effect == Effect::DryRun;
    let apply = PatchParams { dry_run: is_dry, ..PatchParams::apply(MANAGER).force() };
    let mut changes = Vec::new();
    for object in objects.all() {
        changes.push(applied(client, object, &apply).await?);
    }
    let api = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let (label, value) = MANAGED_BY;
    let ours = ListParams::default().labels(&format!("{label}={value}"));
    let found = within_limit(api.list(&ours))
        .await
        .map_err(|error| format!("MutatingWebhookConfigurations cannot be listed: {error}"))?;
    for name in found.iter().map(ResourceExt::name_any) {
        if objects.registrations.iter().any(|wanted| wanted["metadata"]["name"] == name.as_str()) {
            continue;
        }
        let object = format!("MutatingWebhookConfiguration {name}");
        let delete = DeleteParams { dry_run: is_dry, ..DeleteParams::default() };
        within_limit(api.delete(&name, &delete)).await.map_err(|error| format!("{object} stays: {error}"))?;
        changes.push(Change { object, kind: ChangeKind::Removed });
    }
    Ok(changes)
}

async fn applied(client: &kube::Client, object: &Value, apply: &PatchParams) -> Result<Change, String> {
    let parsed: DynamicObject = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    let (name, namespace) = (parsed.name_any(), parsed.namespace());
    let place = namespace.as_ref().map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}"));
    let types = parsed.types.clone().unwrap_or_default();
    let described = format!("{} {place}", types.kind);
    let kind = kube::core::GroupVersionKind::try_from(&types).map_err(|error| error.to_string())?;
    let resource = kube::core::ApiResource::from_gvk(&kind);
    let api = match &namespace {
        Some(namespace) => Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource),
        None => Api::<DynamicObject>::all_with(client.clone(), &resource),
    };
    let refused = |error| format!("{described} cannot be written: {error}; use a kubeconfig of the cluster's owner");
    let before = within_limit(api.get_opt(&name)).await.map_err(refused)?;
    let after = within_limit(api.patch(&name, apply, &Patch::Apply(&parsed))).await.map_err(refused)?;
    let kind = match before {
        None => ChangeKind::Created,
        Some(before) if is_same(&before, &after) => ChangeKind::Unchanged,
        Some(_) => ChangeKind::Changed,
    };
    Ok(Change { object: described, kind })
}

/// Whether only the API server's own notes differ.
fn is_same(before: &DynamicObject, after: &DynamicObject) -> bool {
    before.data == after.data
        && before.metadata.labels == after.metadata.labels
        && before.metadata.annotations == after.metadata.annotations
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::burst::gate_registration;

    fn settings(host: &str) -> WebhookSettings {
        WebhookSettings { url: Some(format!("https://{host}:7483")), ..WebhookSettings::default() }
    }

    fn planned(host: &str, found: Option<&Secret>, renewal: Renewal, now: SystemTime) -> Result<Value, String> {
        let objects = WebhookObjects::plan(&settings(host), &[gate_registration()], found, renewal, now)?;
        let names: Vec<_> = objects.all().map(|object| object["kind"].clone()).collect();
        assert_eq!(names[0], "MutatingWebhookConfiguration");
        Ok(objects.secret.unwrap_or_default())
    }

    #[test]
    fn a_good_certificate_stays_and_another_is_replaced() {
        let now = SystemTime::now();
        let first = planned("10.0.0.1", None, Renewal::WhenNeeded, now).unwrap();
        let stored: Secret = serde_json::from_value(first.clone()).unwrap();
        let printed = serde_saphyr::to_string(&first).unwrap();
        assert_eq!(serde_saphyr::from_str::<Value>(&printed).unwrap(), first);
        let again = |host, renewal, at| planned(host, Some(&stored), renewal, at).unwrap();
        assert_eq!(again("10.0.0.1", Renewal::WhenNeeded, now), first);
        let late = now + Duration::from_secs(4 * 365 * 86_400 + 3_600);
        for (host, at) in [("10.0.0.1", late), ("10.0.0.2", now)] {
            let renewed = again(host, Renewal::WhenNeeded, at);
            assert_ne!(renewed["data"]["tls.key"], first["data"]["tls.key"]);
            assert_eq!(renewed["data"]["path-token"], first["data"]["path-token"]);
        }
        let replaced = again("10.0.0.1", Renewal::Always, now);
        assert_ne!(replaced["data"]["path-token"], first["data"]["path-token"]);
    }

    #[test]
    fn cert_manager_keeps_its_secret() {
        let now = SystemTime::now();
        let mut theirs = planned("10.0.0.1", None, Renewal::WhenNeeded, now).unwrap();
        theirs["metadata"]["annotations"] = json!({ "cert-manager.io/certificate-name": "webhook" });
        let stored: Secret = serde_json::from_value(theirs).unwrap();
        // It renews long before a year.
        for at in [now, now + Duration::from_secs(4 * 365 * 86_400 + 3_600)] {
            assert_eq!(planned("10.0.0.1", Some(&stored), Renewal::WhenNeeded, at), Ok(Value::Null));
        }
        assert!(planned("10.0.0.2", Some(&stored), Renewal::WhenNeeded, now).unwrap_err().contains("10.0.0.2"));
        assert!(planned("10.0.0.1", Some(&stored), Renewal::Always, now).unwrap_err().contains("cert-manager"));
        let empty = Secret { data: None, ..stored };
        assert!(planned("10.0.0.1", Some(&empty), Renewal::WhenNeeded, now).unwrap_err().contains("wait"));
    }
}
