//! Documents that commands write.

use super::OPEN_AGREEMENT;
use crate::kind::API_VERSION;
use crate::source::{BundleSource, SourceFile};

/// The class of [`minimal_bundle`], which every device matches.
const ANY_CLASS: &str = "any";

/// The least bundle with which work can begin: one institution, its tenant, one GPU class for all devices, and an open
/// agreement. The maintainer also operates the brokers and the institution, and administers the tenant. Clusters follow
/// with [`enrol_cluster`](super::enrol_cluster).
#[must_use]
pub fn minimal_bundle(trust_domain: &str, institution: &str, maintainer: &str) -> BundleSource {
    let federation = document(
        "Federation",
        institution,
        &format!(
            "  trustDomain: {trust_domain}\n  maintainers:\n    - {maintainer}\n  brokerOperators:\n    - {maintainer}\n"
        ),
    );
    let class = document(
        "GpuClass",
        ANY_CLASS,
        "  description: Any GPU. Replace it by tiers, as in policy/examples/classes.yaml.\n  \
           selector: device.memoryMiB >= 0\n  rank: 0\n",
    );
    let agreement = document(
        "Agreement",
        OPEN_AGREEMENT,
        &format!(
            "  borrowers: [{institution}]\n  lenders: [{institution}]\n  classes: [{ANY_CLASS}]\n  \
               description: Every institution that a command enrols may borrow from every other.\n"
        ),
    );
    let any = [ANY_CLASS.to_owned()];
    let files = [
        ("agreements/everyone.yaml".to_owned(), agreement),
        ("classes.yaml".to_owned(), class),
        ("federation.yaml".to_owned(), federation),
        (format!("institutions/{institution}.yaml"), self::institution(institution, "", maintainer)),
        (format!("tenants/{institution}.yaml"), tenant(institution, "", maintainer, &any)),
    ];
    BundleSource::of_files(files.map(|(path, text)| SourceFile { path, text }).into())
}

/// An institution with its clusters, separated by commas.
pub(super) fn institution(institution: &str, clusters: &str, operator: &str) -> String {
    document(
        "Institution",
        institution,
        &format!(
            "  displayName: {institution}\n  contact: {operator}\n  clusters: [{clusters}]\n  operators:\n    \
               - {operator}\n"
        ),
    )
}

/// The tenant of an institution, with the institution's name.
pub(super) fn tenant(institution: &str, clusters: &str, admin: &str, classes: &[String]) -> String {
    document(
        "Tenant",
        institution,
        &format!(
            "  institution: {institution}\n  members:\n    - {{id: {admin}, role: admin}}\n  classes: [{}]\n  \
               clusters: [{clusters}]\n",
            classes.join(", ")
        ),
    )
}

/// Terms that lend all classes. Without a class the cluster only borrows.
pub(super) fn cluster(cluster: &str, institution: &str, classes: &[String]) -> String {
    let lends = match classes {
        [] => String::new(),
        classes => format!("  lends:\n    - classes: [{}]\n", classes.join(", ")),
    };
    document(
        "Cluster",
        cluster,
        &format!("  institution: {institution}\n{lends}  delivery: [namespace, virtual-node]\n"),
    )
}

fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: {API_VERSION}\nkind: {kind}\nmetadata:\n  name: {name}\nspec:\n{spec}")
}
