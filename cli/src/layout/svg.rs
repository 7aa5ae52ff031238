//! Grids as SVG: a cell for each element, coloured by thread or bank.

use super::page::{Colour, Grid};
use std::fmt::Write;

/// Width and height of a cell.
const CELL: [usize; 2] = [30, 22];
/// Left of a grid, for the numbers of the rows, and above a grid, for the title and the numbers of the columns.
const MARGIN: [usize; 2] = [46, 48];

/// One drawing of titled grids, from top to bottom.
pub fn draw(grids: &[(String, &Grid)]) -> String {
    let columns = grids.iter().map(|(_, grid)| grid.columns).max().unwrap_or(0);
    let size = |grid: &Grid| MARGIN[1] + grid.rows * CELL[1] + 12;
    let width = (2 * MARGIN[0] + columns * CELL[0]).max(640);
    let height: usize = grids.iter().map(|(_, grid)| size(grid)).sum();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <style>text{{font:8px sans-serif;text-anchor:middle}}.title{{font-size:13px;text-anchor:start}}\
         rect{{stroke:#888;stroke-width:.5}}</style>\n\
         <path fill=\"#fff\" d=\"M0 0h{width}v{height}H0z\"/>\n"
    );
    let mut top = 0;
    for (title, grid) in grids {
        draw_grid(&mut svg, title, grid, top).expect("a String takes all text");
        top += size(grid);
    }
    svg + "</svg>\n"
}

fn draw_grid(svg: &mut String, title: &str, grid: &Grid, top: usize) -> std::fmt::Result {
    let [rows, columns] = grid.of;
    let cut = match [grid.rows, grid.columns] == grid.of {
        true => String::new(),
        false => format!(", the first {} x {}", grid.rows, grid.columns),
    };
    let legend = match grid.colour {
        Colour::Thread => "thread T holds value V",
        Colour::Bank => "bank b, offset in elements",
    };
    writeln!(svg, "<g transform=\"translate({} {})\">", MARGIN[0], top + MARGIN[1])?;
    writeln!(
        svg,
        "<text class=\"title\" x=\"0\" y=\"-26\">{}: {} x {} of {rows} x {columns}{cut}; {legend}</text>",
        escape(title),
        grid.row,
        grid.column
    )?;
    let [width, height] = CELL;
    for column in 0..grid.columns {
        writeln!(svg, "<text x=\"{}\" y=\"-6\">{column}</text>", column * width + width / 2)?;
    }
    for row in 0..grid.rows {
        writeln!(svg, "<text x=\"-14\" y=\"{}\">{row}</text>", row * height + height / 2 + 3)?;
    }
    for (at, &[first, second]) in grid.cells.iter().enumerate().filter(|(_, cell)| cell[0] >= 0) {
        let (x, y) = (at % grid.columns * width, at / grid.columns * height);
        let words = match grid.colour {
            Colour::Thread => [format!("T{first}"), format!("V{second}")],
            Colour::Bank => [format!("b{first}"), second.to_string()],
        };
        let (middle, upper, lower) = (x + width / 2, y + 9, y + 18);
        writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"hsl({} 70% {}%)\"/>\
             <text x=\"{middle}\" y=\"{upper}\">{}</text><text x=\"{middle}\" y=\"{lower}\">{}</text>",
            hue(grid.colour, first),
            lightness(grid.colour, first),
            words[0],
            words[1]
        )?;
    }
    writeln!(svg, "</g>")
}

/// Neighbouring threads get hues far apart, neighbouring banks hues side by side.
fn hue(colour: Colour, number: i32) -> i32 {
    match colour {
        Colour::Thread => number % 32 * 101 % 360,
        Colour::Bank => number * 360 / 32,
    }
}

/// The warps of a thread block differ in lightness.
fn lightness(colour: Colour, number: i32) -> i32 {
    match colour {
        Colour::Thread => 84 - number / 32 % 4 * 5,
        Colour::Bank => 80,
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
