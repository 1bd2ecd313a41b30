//! Checks `pinnedInstitutions` and `requireVouchers`.

use std::collections::BTreeMap;

use comity_agent_model::settings::SettingChecks;
use comity_types::is_dns_label;

use crate::keys::pins::Pins;

pub(super) fn check(pins: &Pins, checks: &mut SettingChecks) {
    const FIELD: &str = "pinnedInstitutions";
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, pin) in &pins.institutions {
        if !is_dns_label(name) {
            checks.refuse(FIELD, name, "write the institution's name as policy does, a DNS label");
        }
        if pin.keys.is_empty() {
            checks.refuse(FIELD, name, "name at least one key, as comity cluster voucher key prints it");
        }
        for cluster in &pin.clusters {
            if !is_dns_label(cluster) {
                checks.refuse(FIELD, cluster, "write the cluster's name, a DNS label");
            }
            if let Some(other) = owners.insert(cluster, name) {
                let reason = format!("institutions {other} and {name} both list it; leave it in one of them");
                checks.refuse(FIELD, cluster, reason);
            }
        }
    }
    if pins.require_vouchers && pins.institutions.is_empty() {
        let reason = "without pinnedInstitutions no voucher counts, so nobody could be peered; pin an institution";
        checks.refuse("requireVouchers", true, reason);
    }
}
