//! Fuzzes the pages of exporters.

use comity_fuzz::fuzz;

use super::metrics_text::samples;

#[test]
fn pages_of_exporters() {
    let page = "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\nDCGM_FI_DEV_GPU_UTIL{gpu=\"0\",pod=\"a \\\"b\\\" \\\\ \\n\",} 1e2 17\nup 0\n";
    fuzz!("exporter_page", vec![page.as_bytes().to_vec()], |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        samples(text, &["DCGM_FI_DEV_GPU_UTIL", "up"]).filter(|sample| sample.label("gpu") != "x").count() > 0
    });
}
