// Map projections and Voronoi cells of Vega, which no chart of a report uses and Debian does not package.
export const geoMollweide = undefined, Delaunay = undefined;
