"""Labels of pictures."""


def assert_legible(figure):
    """No tick labels of an axis touch; titles and labels of axes lie within the figure."""
    figure.draw_without_rendering()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [x for x in axis.get_ticklabels() if x.get_visible() and x.get_text()]
            boxes = [label.get_window_extent() for label in labels]
            for k, box in enumerate(boxes):
                assert not any(box.overlaps(other) for other in boxes[k + 1 :])
            if axis.label.get_text():
                box = axis.label.get_window_extent()
                assert box.x0 >= -1
                assert box.x1 <= figure.bbox.x1 + 1
    for text in (figure._suptitle, *(axes.title for axes in figure.axes)):
        if text is not None and text.get_text():
            box = text.get_window_extent()
            assert box.x0 >= -1 and box.x1 <= figure.bbox.x1 + 1
    boxes = [axes.xaxis.label.get_window_extent() for axes in figure.axes if axes.get_xlabel()]
    for k, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[k + 1 :])
