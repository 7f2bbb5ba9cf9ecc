//! A picture of MB/s by second.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 64.0;
const COLOURS: [&str; 6] = ["#0b6e99", "#d9730d", "#6940a5", "#0f7b6c", "#ad1a72", "#64473a"];

/// Named curves under a title.
pub(crate) type Panel = (String, Vec<(String, Vec<f64>)>);

/// One panel below the other.
pub(crate) fn picture(panels: &[Panel]) -> String {
    let height = panels.len() as f64 * (HEIGHT + 90.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n",
        WIDTH + LEFT + 190.0
    );
    for (i, (title, curves)) in panels.iter().enumerate() {
        panel(&mut out, i as f64 * (HEIGHT + 90.0) + 40.0, title, curves);
    }
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, top: f64, title: &str, curves: &[(String, Vec<f64>)]) {
    let points = || curves.iter().flat_map(|(_, points)| points.iter().copied());
    let most = points().fold(1.0, f64::max) * 1.05;
    let seconds = curves.iter().map(|(_, points)| points.len()).max().unwrap_or(0).max(2);
    let x = |i: usize| LEFT + WIDTH * i as f64 / (seconds - 1) as f64;
    let y = |mb: f64| top + HEIGHT * (1.0 - mb / most);
    // Writing to a string does not fail.
    let _ =
        writeln!(out, "<text x=\"{LEFT}\" y=\"{:.1}\" font-size=\"14\">{title}</text>", top - 14.0);
    for step in 0..=4 {
        let mb = most * f64::from(step) / 4.0;
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{mb:.0}</text>",
            LEFT + WIDTH,
            y(mb),
            LEFT - 6.0,
            y(mb) + 4.0
        );
    }
    for (i, (name, points)) in curves.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let line: Vec<String> =
            points.iter().enumerate().map(|(i, &mb)| format!("{:.1},{:.1}", x(i), y(mb))).collect();
        let at = top + 16.0 * i as f64 + 8.0;
        let _ = writeln!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{at:.1}\" fill=\"{colour}\">{name}</text>",
            line.join(" "),
            LEFT + WIDTH + 10.0
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{0:.1}\">MB/s, second 1</text>\
         <text x=\"{1:.1}\" y=\"{0:.1}\" text-anchor=\"end\">second {seconds}</text>",
        top + HEIGHT + 18.0,
        LEFT + WIDTH
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_is_drawn_and_named() {
        let curves = vec![("a".into(), vec![1.0, 2.0, 3.0]), ("b".into(), vec![])];
        let svg = picture(&[("reads".into(), curves)]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains(">a</text>") && svg.contains(">reads</text>"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
