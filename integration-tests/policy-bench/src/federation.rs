//! The documents of a large federation.

use std::fmt::Write as _;

use comity_policy::SourceFile;

use crate::rules::TwinRule;

/// Institutions; each has two clusters.
pub const INSTITUTIONS: usize = 50;
/// Classes of GPUs.
pub const CLASSES: usize = 8;
/// Documents in one file.
const DOCUMENTS_PER_FILE: usize = 500;

/// How many documents there are of the kinds that grow.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Tenants; each has a quota.
    pub tenants: usize,
    /// Agreements between institutions.
    pub agreements: usize,
}

/// A tenant's institution.
#[must_use]
pub fn institution_of(tenant: usize) -> usize {
    tenant % INSTITUTIONS
}

/// The classes that a tenant may request.
pub fn classes_of(tenant: usize) -> impl Iterator<Item = usize> {
    (0..CLASSES).filter(move |class| !(class + tenant).is_multiple_of(8) && (class * 3 + tenant) % 8 != 1)
}

/// Borrowers, lenders and classes of an agreement.
#[must_use]
pub fn parties_of(agreement: usize) -> ([usize; 2], [usize; 2], Vec<usize>) {
    let first = agreement % INSTITUTIONS;
    let step = agreement / INSTITUTIONS;
    let other = |by: usize| (first + by) % INSTITUTIONS;
    let classes = (0..CLASSES).filter(|class| !(class + agreement).is_multiple_of(4)).collect();
    ([first, other(1)], [other(2 + step * 2), other(3 + step * 2)], classes)
}

/// The most GPUs lent under an agreement.
pub const MAX_UNDER_AGREEMENT: u64 = 400;
/// The most GPUs that a tenant borrows.
pub const MAX_CONCURRENT: u64 = 24;
/// The most GPUs in one request of a tenant.
pub const MAX_PER_REQUEST: u64 = 16;
/// The most GPUs that a cluster lends of the classes that it lends to everybody.
pub const MAX_LENT: u64 = 96;
/// Classes that a cluster lends to everybody; the others it lends to some institutions.
pub const OPEN_CLASSES: usize = 6;

/// The institutions to which a cluster lends the other classes.
pub fn favoured_by(cluster: usize) -> impl Iterator<Item = usize> {
    (0..INSTITUTIONS).filter(move |institution| (institution + cluster) % 5 < 3)
}

/// Weight of a tenant, or of an institution.
#[must_use]
pub fn weight_of(number: usize) -> usize {
    50 + number % 4 * 50
}

/// Price of a class in thousandths of a credit.
#[must_use]
pub fn price_milli(class: usize) -> usize {
    500 + class * 1_000
}

/// Rank of a class.
#[must_use]
pub fn rank_of(class: usize) -> usize {
    (class + 1) * 10
}

/// The files of a bundle.
#[must_use]
pub fn policy_files(size: Size, rules: &[TwinRule]) -> Vec<SourceFile> {
    let mut documents = vec![document(
        "Federation",
        "bench",
        "trustDomain: b.example\n  maintainers: [spiffe://b.example/user/admin]\n  limits: {maxGpusPerRequest: 64, \
         maxLeaseDuration: 7d}",
    )];
    for class in 0..CLASSES {
        let memory = (class + 1) * 10_000;
        let (rank, price) = (rank_of(class), price_milli(class));
        let (credits, milli) = (price / 1_000, price % 1_000);
        let spec =
            format!("selector: device.memoryMiB >= {memory}\n  rank: {rank}\n  priceCredits: {credits}.{milli:03}");
        documents.push(document("GpuClass", &format!("c-{class}"), &spec));
    }
    for institution in 0..INSTITUTIONS {
        let (weight, region) = (weight_of(institution), institution % 5);
        let [one, other] = [institution * 2, institution * 2 + 1];
        let spec = format!(
            "displayName: Institution {institution}\n  contact: gpu@inst-{institution}.example\n  homeRegion: \
             region-{region}\n  clusters: [site-{one}, site-{other}]\n  operators: \
             [spiffe://b.example/user/operator-{institution}]\n  weight: {weight}"
        );
        documents.push(document("Institution", &format!("inst-{institution}"), &spec));
    }
    for cluster in 0..INSTITUTIONS * 2 {
        let open = list("c", 0..OPEN_CLASSES);
        let others = list("c", OPEN_CLASSES..CLASSES);
        let favoured = list("inst", favoured_by(cluster));
        let (institution, region) = (cluster / 2, (cluster / 2 + cluster % 2) % 5);
        let spec = format!(
            "institution: inst-{institution}\n  region: region-{region}\n  lends:\n    - {{classes: {open}, maxGpus: \
             {MAX_LENT}}}\n    - {{classes: {others}, to: {{institutions: {favoured}}}}}\n  delivery: [namespace, \
             virtual-node]"
        );
        documents.push(document("Cluster", &format!("site-{cluster}"), &spec));
    }
    for tenant in 0..size.tenants {
        let institution = institution_of(tenant);
        let [one, other] = [institution * 2, institution * 2 + 1];
        let (classes, weight) = (list("c", classes_of(tenant)), weight_of(tenant));
        let spec = format!(
            "institution: inst-{institution}\n  members: [{{id: spiffe://b.example/user/u{tenant}, role: \
             submitter}}]\n  weight: {weight}\n  classes: {classes}\n  clusters: [site-{one}, site-{other}]"
        );
        documents.push(document("Tenant", &format!("t-{tenant}"), &spec));
        let spec = format!(
            "tenant: t-{tenant}\n  maxConcurrentGpus: {MAX_CONCURRENT}\n  maxGpusPerRequest: {MAX_PER_REQUEST}"
        );
        documents.push(document("Quota", &format!("q-{tenant}"), &spec));
    }
    for agreement in 0..size.agreements {
        let (borrowers, lenders, classes) = parties_of(agreement);
        let [borrowers, lenders] = [borrowers, lenders].map(|institutions| list("inst", institutions));
        let classes = list("c", classes);
        let spec = format!(
            "borrowers: {borrowers}\n  lenders: {lenders}\n  classes: {classes}\n  maxGpus: {MAX_UNDER_AGREEMENT}\n  from: \
             2026-01-01\n  until: 2035-12-31\n  description: Research"
        );
        documents.push(document("Agreement", &format!("agreement-{agreement}"), &spec));
    }
    for rule in rules {
        let spec = format!("{}: \"{}\"\n  message: because of {}", rule.effect, rule.cel, rule.name);
        documents.push(document("Rule", &rule.name, &spec));
    }
    let files = documents.chunks(DOCUMENTS_PER_FILE).enumerate();
    files.map(|(number, texts)| SourceFile { path: format!("{number:03}.yaml"), text: texts.join("---\n") }).collect()
}

fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: policy.comity.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  {spec}\n")
}

fn list(noun: &str, numbers: impl IntoIterator<Item = usize>) -> String {
    let mut text = String::from("[");
    for number in numbers {
        let comma = if text.len() > 1 { ", " } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(text, "{comma}{noun}-{number}");
    }
    text + "]"
}
