//! What is left of a quota that a request counts against.

use comity_proto::v1;
use serde::Serialize;

use super::value::{non_empty, non_zero};
use crate::output::{Answer, Column, Sheet, columns};
use crate::units::{format_milli, format_time};

/// A limit of a quota, and what counts against it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QuotaUse {
    /// Document and line of the limit.
    pub by: String,
    /// Whom it limits: a tenant.
    pub tenant: Option<String>,
    /// Whom it limits: all tenants of an institution.
    pub institution: Option<String>,
    /// Whether it limits each user; what is used is then the caller's.
    pub per_user: bool,
    /// Classes that count, together; empty for all.
    pub classes: Vec<String>,
    /// Period of a limit on GPU-hours; none for a limit on GPUs at a time.
    pub per: Option<String>,
    /// Begin of the period.
    pub period_start_ms: Option<u64>,
    /// End of the period.
    pub period_end_ms: Option<u64>,
    /// The limit, in thousandths of GPUs or GPU-hours.
    pub limit_milli: u64,
    /// In use; for GPU-hours used and booked.
    pub used_milli: u64,
    /// What the request needs.
    pub needs_milli: u64,
    /// What is left after it.
    pub left_milli: u64,
    /// What may be used now beside what is in use.
    pub available_milli: u64,
    /// The cohort with which the quota shares what is idle.
    pub cohort: Option<String>,
    /// What is in use above the limit, borrowed of the cohort.
    pub borrowed_milli: u64,
    /// What is missing of the limit because others of the cohort use it.
    pub lent_milli: u64,
}

impl From<v1::QuotaUse> for QuotaUse {
    fn from(quota: v1::QuotaUse) -> Self {
        Self {
            by: quota.by,
            tenant: non_empty(quota.tenant),
            institution: non_empty(quota.institution),
            per_user: quota.per_user,
            classes: quota.classes,
            per: non_empty(quota.per),
            period_start_ms: non_zero(quota.period_start_ms),
            period_end_ms: non_zero(quota.period_end_ms),
            limit_milli: quota.limit_milli,
            used_milli: quota.used_milli,
            needs_milli: quota.needs_milli,
            left_milli: quota.left_milli,
            available_milli: quota.available_milli,
            cohort: non_empty(quota.cohort),
            borrowed_milli: quota.borrowed_milli,
            lent_milli: quota.lent_milli,
        }
    }
}

impl QuotaUse {
    fn limits_text(&self) -> String {
        let what = self.per.as_ref().map_or_else(|| "GPUs".to_owned(), |per| format!("GPU-hours per {per}"));
        let classes = if self.classes.is_empty() { String::new() } else { format!(" of {}", self.classes.join(", ")) };
        format!("{what}{classes}")
    }

    fn whom_text(&self) -> String {
        let whom = self.tenant.as_ref().or(self.institution.as_ref()).cloned().unwrap_or_default();
        if self.per_user { format!("each user of {whom}") } else { whom }
    }

    /// What a request needs, if it does not fit.
    fn left_text(&self) -> String {
        if self.needs_milli > self.available_milli {
            return "does not fit".to_owned();
        }
        format_milli(self.left_milli)
    }
}

/// The limits of quotas, and what is in use.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Quotas {
    /// The limits, by document.
    pub items: Vec<QuotaUse>,
    /// Revision that they describe.
    pub revision: u64,
}

impl Answer for Quotas {
    fn table(&self, _now_ms: u64) -> Sheet {
        table_of(&self.items, "no quota counts your tenants")
    }
}

/// A row per limit; empty without any.
pub(super) fn quotas_table(quotas: &[QuotaUse]) -> Sheet {
    if quotas.is_empty() { Sheet::default() } else { table_of(quotas, "") }
}

/// What a request needs has a column only where there is one.
fn table_of(quotas: &[QuotaUse], none: &str) -> Sheet {
    let has_needs = quotas.iter().any(|quota| quota.needs_milli > 0);
    let has_cohorts = quotas.iter().any(|quota| quota.cohort.is_some());
    let of_cohort = |quota: &QuotaUse, milli| if quota.cohort.is_some() { format_milli(milli) } else { String::new() };
    let row = |quota: &QuotaUse| {
        let mut row = vec![
            quota.limits_text(),
            quota.whom_text(),
            format_milli(quota.limit_milli),
            format_milli(quota.used_milli),
        ];
        if has_cohorts {
            row.extend([of_cohort(quota, quota.borrowed_milli), of_cohort(quota, quota.lent_milli)]);
        }
        row.extend(has_needs.then(|| format_milli(quota.needs_milli)));
        row.extend([
            quota.left_text(),
            quota.period_end_ms.and_then(format_time).unwrap_or_default(),
            quota.by.clone(),
        ]);
        row
    };
    let mut heads =
        vec![Column::prose("quota"), Column::text("for").rank(2), Column::text("limit"), Column::text("used")];
    if has_cohorts {
        heads.extend([Column::text("borrowed").rank(4), Column::text("lent").rank(4)]);
    }
    heads.extend(has_needs.then(|| Column::text("needs")));
    heads.extend([
        Column::text(if has_needs { "left after" } else { "left" }),
        Column::text("until").rank(3),
        Column::prose("by").rank(1),
    ]);
    columns(&heads, quotas.iter().map(row).collect(), none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_shows_what_is_left_after_the_request() {
        let hours = v1::QuotaUse {
            by: "Quota month (q.yaml:7)".to_owned(),
            tenant: "team".to_owned(),
            per: "month".to_owned(),
            period_end_ms: 1_801_436_400_000,
            limit_milli: 500_000,
            used_milli: 480_500,
            needs_milli: 8_000,
            left_milli: 11_500,
            available_milli: 19_500,
            ..Default::default()
        };
        let gpus = v1::QuotaUse {
            by: "Quota each (q.yaml:9)".to_owned(),
            institution: "campus".to_owned(),
            per_user: true,
            classes: vec!["big".to_owned()],
            limit_milli: 4_000,
            used_milli: 3_500,
            needs_milli: 1_000,
            available_milli: 500,
            ..Default::default()
        };
        let quotas: Vec<QuotaUse> = [hours, gpus].into_iter().map(QuotaUse::from).collect();
        let table = quotas_table(&quotas).to_string();
        let lines: Vec<&str> = table.lines().collect();
        for words in
            ["GPU-hours per month", "team", "500", "480.5", "8", "11.5", "2027-01-31", "Quota month (q.yaml:7)"]
        {
            assert!(lines[1].contains(words), "{words}: {table}");
        }
        for words in ["GPUs of big", "each user of campus", "4", "3.5", "does not fit"] {
            assert!(lines[2].contains(words), "{words}: {table}");
        }
        let json = serde_json::to_value(&quotas[0]).expect("plain data serialises");
        assert_eq!((&json["leftMilli"], &json["institution"]), (&11_500.into(), &serde_json::Value::Null));
        assert_eq!(quotas_table(&[]).to_string(), "");
    }

    #[test]
    fn a_quota_of_a_cohort_shows_what_is_borrowed_and_lent() {
        let quota = |cohort: &str, used_milli, borrowed_milli, available_milli| v1::QuotaUse {
            cohort: cohort.to_owned(),
            limit_milli: 4_000,
            used_milli,
            borrowed_milli,
            needs_milli: 2_000,
            available_milli,
            left_milli: available_milli - 2_000,
            ..Default::default()
        };
        let shown = |quotas: Vec<v1::QuotaUse>| {
            let quotas: Vec<QuotaUse> = quotas.into_iter().map(QuotaUse::from).collect();
            quotas_table(&quotas).to_string()
        };
        let table = shown(vec![quota("research", 5_500, 1_500, 3_000), quota("", 1_000, 0, 3_000)]);
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines[0].contains(&"BORROWED") && lines[0].contains(&"LENT"), "{table}");
        assert!(lines[1].contains(&"5.5") && lines[1].contains(&"1.5"), "above the limit, and it fits: {table}");
        assert!(!table.contains("does not fit"), "{table}");
        assert!(!shown(vec![quota("", 1_000, 0, 3_000)]).contains("BORROWED"));
    }
}
