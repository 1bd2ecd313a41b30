//! Whether the data of a request may be read at a donor, for an agent of its origin.

use comity_types::{DataNeed, Delivery};

use super::citations::Citations;
use super::datasets::{check_datasets, demanding};
use super::decide::{check_origin, find_donor, find_tenant};
use super::find_agreement::find_agreement;
use super::{BorrowFacts, Denial, InUse};
use crate::bundle::Bundle;

/// Data that a request reads at a donor.
#[derive(Clone, Copy, Debug)]
pub struct DataRead<'f> {
    /// The borrowing tenant.
    pub tenant: &'f str,
    /// The cluster of the request.
    pub origin_cluster: &'f str,
    /// The cluster that would lend.
    pub donor_cluster: &'f str,
    /// The class of the GPUs.
    pub class: &'f str,
    /// The datasets.
    pub data: &'f [DataNeed],
    /// The purpose for which they are read; empty for none.
    pub purpose: &'f str,
    /// Time in milliseconds since 1970.
    pub now_ms: u64,
}

impl Bundle {
    /// Whether the data of a request may be read at a donor, whatever else policy says: for an agent of its origin.
    ///
    /// # Errors
    /// The first reason against it: of a dataset, or that no agreement allows its data.
    pub fn may_read(&self, read: &DataRead<'_>) -> Result<(), Box<Denial>> {
        // As little as possible, so that no limit on an amount or a duration denies it.
        let facts = BorrowFacts {
            tenant: read.tenant,
            user: "",
            origin_cluster: read.origin_cluster,
            donor_cluster: read.donor_cluster,
            class: read.class,
            gpus_milli: 1,
            beside_milli: 0,
            delivery: Delivery::default(),
            duration_ms: 1,
            notice_ms: None,
            now_ms: read.now_ms,
            data: read.data,
            purpose: read.purpose,
            in_use: InUse::default(),
        };
        if facts.data.is_empty() {
            return Ok(());
        }
        let donor = find_donor(self, &facts)?;
        check_datasets(self, &facts, donor, &mut Citations::Skipped)?;
        if demanding(self, &facts).next().is_none() {
            return Ok(());
        }
        // Not the institution of the origin: a tenant may submit from a cluster of another one.
        let tenant = find_tenant(self, &facts)?;
        check_origin(&facts, tenant)?;
        find_agreement(self, &facts, &tenant.spec.institution, &donor.spec.institution).map(|_| ())
    }
}
