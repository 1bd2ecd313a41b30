//! A call in a lease's namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use comity_types::LeaseId;

use super::Site;
use crate::answers::{Caller, Refusal};
use crate::leases::LeaseRecord;
use crate::running::{PodEntry, PodHost, PodKey};

/// What a handler works with: it exists only if the path has the caller's own namespace.
pub(super) struct LeaseCall {
    pub(super) site: Site,
    pub(super) lease: LeaseId,
    pub(super) record: LeaseRecord,
    /// Name of the object; empty in paths of lists.
    pub(super) name: String,
}

impl FromRequestParts<Site> for LeaseCall {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, site: &Site) -> Result<Self, Refusal> {
        let Some(Caller { lease, record }) = parts.extensions.get::<Caller>().cloned() else {
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, "the caller is not known"));
        };
        let path = Path::<BTreeMap<String, String>>::from_request_parts(parts, site).await;
        let Path(mut path) = path.map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string()))?;
        let mut part = |name: &str| path.remove(name).unwrap_or_default();
        let (namespace, name) = (part("namespace"), part("name"));
        if namespace == record.namespace {
            return Ok(Self { site: site.clone(), lease, record, name });
        }
        Err(Refusal::new(StatusCode::FORBIDDEN, format!("the token is for namespace {}", record.namespace)))
    }
}

impl LeaseCall {
    /// The host, if it runs pods.
    pub(super) fn host(&self) -> Result<&Arc<PodHost>, Refusal> {
        self.site.host.as_ref().ok_or_else(|| {
            let message = "this host runs no pods: its owner has not set the section site in agent.yaml";
            // Not 503, which clients take for an outage and try again.
            Refusal::new(StatusCode::FORBIDDEN, message)
        })
    }

    /// The pod that the path names.
    pub(super) fn pod(&self) -> Result<(PodKey, PodEntry), Refusal> {
        let key = PodKey { lease: self.lease, name: self.name.clone() };
        let entry = self.host()?.book.entry(&key).ok_or_else(|| Refusal::not_found("pods", &self.name))?;
        Ok((key, entry))
    }

    /// Refuses what was written while the lease ended: whoever removed everything of it may not have seen that.
    pub(super) fn still_runs(&self) -> Result<(), Refusal> {
        if self.site.leases.contains(self.lease) {
            return Ok(());
        }
        Err(Refusal::new(StatusCode::UNAUTHORIZED, "the lease has ended"))
    }
}
