// Everything the pages use of Preact, with htm's templates bound to it: `html` makes elements, never markup from text.
import { h } from "preact";
import htm from "htm";

export { Component, Fragment, createContext, render } from "preact";
export { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export const html = htm.bind(h);
