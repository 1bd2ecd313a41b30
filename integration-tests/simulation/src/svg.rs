//! The frame of the plots.

/// Width of a plot.
pub(crate) const WIDTH: u64 = 1_200;

/// Opens a plot of [`WIDTH`] with a white background; the caller closes it.
pub(crate) fn open(height: u64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    )
}
