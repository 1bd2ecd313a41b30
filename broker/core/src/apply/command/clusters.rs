//! Commands about member clusters and their offers.

pub(crate) mod advertise_offer;
pub(crate) mod invite_cluster;
pub(crate) mod join_cluster;
pub(crate) mod mark_clusters;
pub(crate) mod record_certificate;
pub(crate) mod record_issuer;
pub(crate) mod revise_offer;
